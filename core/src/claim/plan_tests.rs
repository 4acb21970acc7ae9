use std::collections::BTreeSet;

use super::*;
use crate::fault::Class;

const UID: &str = "11111111-2222-4333-8444-555555555555";
const GREEN: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";
const TOKEN: &str = "00112233445566778899aabbccddeeff";

fn key() -> ClaimKey {
    ClaimKey { namespace: "team".into(), name: "c".into(), uid: UID.into() }
}

fn node() -> NodeFacts {
    NodeFacts {
        boot_id: "boot-1".into(),
        major: Ok(234),
        fabric: Fabric::None,
        gpus: [("gpu-0".to_owned(), "GPU-0".to_owned())].into(),
        mig: BTreeSet::new(),
        toolkit: Toolkit { devices: ["GPU-0".to_owned()].into(), ..Toolkit::default() },
    }
}

fn start(driver: &'static str) -> Known {
    Known::new(key(), driver, node(), TOKEN.into(), None)
}

/// A disk, an API server and an allocator that do what they are told.
#[derive(Clone, Debug, Default)]
struct World {
    disk: Option<Checkpoint>,
    cdi: BTreeMap<String, Vec<u8>>,
    entered: BTreeSet<String>,
    answered: Option<Vec<PreparedDevice>>,
    requests: Vec<&'static str>,
    channel: u32,
    devices: Vec<String>,
    isolation: IsolationMode,
    allocation: AllocationMode,
}

impl World {
    fn new(channel: u32) -> Self {
        Self { channel, devices: vec!["slot-0".into()], ..Self::default() }
    }

    /// Reads what outlives a process, as the shell does.
    fn read(&self, known: &mut Known) {
        known.on_disk = self.disk.clone();
        known.cdi_intact = self.disk.as_ref().is_some_and(|checkpoint| {
            cdi::file(checkpoint).unwrap().is_none_or(|file| self.cdi.get(&file.name) == Some(&file.contents))
        });
    }

    fn run(&mut self, known: &mut Known, step: Step) {
        match step {
            Step::Undo => self.undo(usize::MAX),
            Step::Verify(held) => known.entry_verified = self.entered.contains(&held.cd_uid),
            Step::GetClaim => {
                self.requests.push("claim");
                let devices = self.devices.iter().map(|device| Allocated {
                    request: "channel".into(),
                    pool: "n1".into(),
                    device: device.clone(),
                    share_id: None,
                });
                let config = ChannelConfig::new(GREEN, "green", self.allocation);
                known.demand = Some(Demand { devices: devices.collect(), config: Some(config) });
            }
            Step::GetComputeDomain(config) => {
                self.requests.push("computedomain");
                known.domain = Some(DomainFacts {
                    reference: ComputeDomainRef {
                        namespace: "team".into(),
                        name: "green".into(),
                        uid: config.domain_id,
                    },
                    isolation: self.isolation,
                    allocation: self.allocation,
                });
            }
            Step::CheckContainers(_) => {
                self.requests.push("pod");
                known.containers_checked = true;
            }
            Step::Enter(domain) => {
                self.entered.insert(domain.reference.uid);
                known.grant =
                    Some(Grant::Channel { channel: self.channel, domain: "shared-0".into(), channel_count: 2048 });
            }
            Step::AwaitToolkit(_) => self.requests.push("toolkit"),
            Step::Write(checkpoint) => self.disk = Some(checkpoint),
            Step::WriteCdi(file) => drop(self.cdi.insert(file.name, file.contents)),
            Step::Answer(devices) => self.answered = Some(devices),
        }
        self.read(known);
    }

    /// Prepares until answered, or for so many steps; says whether it was answered.
    fn prepare(&mut self, mut known: Known, steps: usize) -> bool {
        self.answered = None;
        self.read(&mut known);
        for _ in 0..steps.min(50) {
            let step = next(&known).unwrap();
            self.run(&mut known, step);
            if self.answered.is_some() {
                return true;
            }
        }
        false
    }

    fn undo(&mut self, effects: usize) {
        for effect in undo(self.disk.as_ref()).into_iter().take(effects) {
            match effect {
                Undo::Bury => self.disk = self.disk.as_ref().map(|checkpoint| checkpoint.with_state(State::Tombstone)),
                Undo::RemoveCdi(name) => drop(self.cdi.remove(&name)),
                Undo::Forget => self.disk = None,
                Undo::Leave { cd_uid } => drop(self.entered.remove(&cd_uid)),
            }
        }
    }

    /// The rule that all else serves: what the kubelet was told is on disk, in the CDI folder, and entered.
    fn check_answer(&self) {
        let answered = self.answered.as_ref().unwrap();
        let checkpoint = self.disk.as_ref().unwrap();
        assert_eq!((checkpoint.state, &checkpoint.devices), (State::Prepared, answered));
        let file = cdi::file(checkpoint).unwrap().unwrap();
        assert_eq!(self.cdi, [(file.name, file.contents)].into());
        assert!(self.entered.contains(GREEN));
        assert_eq!(answered.iter().flat_map(|device| &device.cdi_ids).collect::<Vec<_>>(), [&file.id]);
    }
}

#[test]
fn the_channel_is_entered_before_anything_is_written_and_the_checkpoint_frames_the_file() {
    let mut world = World::new(7);
    let mut known = start(names::DRIVER);
    let mut steps = Vec::new();
    while world.answered.is_none() {
        let step = next(&known).unwrap();
        steps.push(match &step {
            Step::Write(checkpoint) => format!("Write {:?}", checkpoint.state),
            Step::Answer(_) => "Answer".into(),
            other => format!("{other:?}").split(['(', ' ']).next().unwrap().to_owned(),
        });
        world.run(&mut known, step);
    }
    assert_eq!(
        steps,
        ["GetClaim", "GetComputeDomain", "Enter", "Write Preparing", "WriteCdi", "Write Prepared", "Answer"]
    );
    world.check_answer();
}

#[test]
fn a_config_that_contradicts_its_compute_domain_is_refused_whether_it_was_read_for_it_or_known() {
    let demand = |name: Option<&str>, mode: AllocationMode| {
        let mut world = World::new(7);
        let mut known = start(names::DRIVER);
        world.run(&mut known, Step::GetClaim);
        let config = ChannelConfig { compute_domain: name.map(Into::into), ..ChannelConfig::new(GREEN, "green", mode) };
        world.run(&mut known, Step::GetComputeDomain(config.clone()));
        known.demand.as_mut().unwrap().config = Some(config);
        next(&known)
    };
    for good in [Some("green"), None] {
        assert!(matches!(demand(good, AllocationMode::Single), Ok(Step::Enter(_))));
    }
    for (name, mode, expected) in [
        (Some("blue"), AllocationMode::Single, reason::COMPUTE_DOMAIN_GONE),
        (Some("green"), AllocationMode::All, reason::INVALID_CONFIG),
        (None, AllocationMode::All, reason::INVALID_CONFIG),
    ] {
        let fault = demand(name, mode).unwrap_err();
        assert_eq!((fault.class, fault.reason), (Class::Permanent, expected), "{fault}");
        assert!(!fault.message.contains("  "), "{fault}");
    }
}

#[test]
fn pods_are_read_only_where_one_may_use_two_compute_domains() {
    for (accompanied, requests) in
        [(false, &["claim", "computedomain"][..]), (true, &["claim", "computedomain", "pod"])]
    {
        let mut world = World::new(7);
        assert!(world.prepare(Known { accompanied, ..start(names::DRIVER) }, 50));
        world.check_answer();
        assert_eq!(world.requests, requests);
        assert!(world.prepare(Known { accompanied, ..start(names::DRIVER) }, 50));
        assert_eq!(world.requests, requests, "what is prepared is answered without the API");
    }
}

#[test]
fn case_16_a_prepared_claim_is_answered_without_the_api() {
    let mut world = World::new(7);
    assert!(world.prepare(start(names::DRIVER), 50));
    let first = world.answered.clone();
    world.requests.clear();
    assert!(world.prepare(start(names::DRIVER), 50));
    assert_eq!((world.answered.clone(), world.requests.as_slice()), (first, &[][..]));
}

#[test]
fn case_19_after_a_reboot_the_file_is_rewritten_with_the_new_major() {
    let mut world = World::new(7);
    assert!(world.prepare(start(names::DRIVER), 50));
    let ids = world.answered.clone();
    world.cdi.clear();
    let mut rebooted = start(names::DRIVER);
    rebooted.node.boot_id = "boot-2".into();
    rebooted.node.major = Ok(511);
    assert!(world.prepare(rebooted, 50));
    world.check_answer();
    assert_eq!(world.answered, ids);
    let disk = world.disk.unwrap();
    assert_eq!((disk.boot_id.as_str(), disk.channel.unwrap().major), ("boot-2", 511));
}

#[test]
fn case_40_who_stands_by_answers_only_what_needs_no_write() {
    let mut world = World::new(7);
    let standing = |world: &World, change: fn(&mut Known)| {
        let mut known = start(names::DRIVER);
        world.read(&mut known);
        change(&mut known);
        standing(&known)
    };
    assert!(world.prepare(start(names::DRIVER), 50));
    assert_eq!(standing(&world, |_| {}), world.answered);
    assert_eq!(standing(&world, |known| known.node.boot_id = "boot-2".into()), None);
    assert_eq!(standing(&world, |known| known.node.major = Ok(511)), None);
    assert_eq!(standing(&world, |known| known.cdi_intact = false), None);
    for state in [State::Preparing, State::Tombstone] {
        let mut other = world.clone();
        other.disk = world.disk.as_ref().map(|checkpoint| checkpoint.with_state(state));
        assert_eq!(standing(&other, |_| {}), None, "{state:?}");
    }
    world.disk = None;
    assert_eq!(standing(&world, |_| {}), None);
}

#[test]
fn a_prepared_claim_whose_entry_is_lost_is_not_answered() {
    let mut world = World::new(7);
    assert!(world.prepare(start(names::DRIVER), 50));
    world.entered.clear();
    assert!(!world.prepare(start(names::DRIVER), 50));
}

#[test]
fn a_crash_after_any_step_of_prepare_and_any_effect_of_undo_converges() {
    for crash in 0..8 {
        for cut in 0..5 {
            let mut world = World::new(7);
            world.prepare(start(names::DRIVER), crash);
            // The number may be another one the next time: the entry was left while the agent was away.
            world.channel = if world.disk.as_ref().is_some_and(|c| c.state == State::Prepared) { 7 } else { 9 };
            let again = Known { token: TOKEN.replace('0', "e"), ..start(names::DRIVER) };
            assert!(world.prepare(again, 50), "crash after {crash} steps");
            world.check_answer();

            world.undo(cut);
            world.undo(usize::MAX);
            assert_eq!((world.disk.clone(), world.cdi.len()), (None, 0), "undo cut after {cut}");
            if cut < 4 {
                assert!(world.prepare(start(names::DRIVER), 50));
                world.check_answer();
            }
        }
    }
}

#[test]
fn case_29_a_prepare_over_a_tombstone_finishes_the_undo_first() {
    let mut world = World::new(7);
    assert!(world.prepare(start(names::DRIVER), 50));
    world.undo(1);
    let mut known = start(names::DRIVER);
    world.read(&mut known);
    assert_eq!(next(&known).unwrap(), Step::Undo);
    assert!(world.prepare(start(names::DRIVER), 50));
    world.check_answer();
}

#[test]
fn case_30_undoing_nothing_does_nothing() {
    assert!(undo(None).is_empty());
}

#[test]
fn the_channel_is_left_last() {
    let mut world = World::new(7);
    assert!(world.prepare(start(names::DRIVER), 50));
    let effects = undo(world.disk.as_ref());
    assert!(matches!(effects.as_slice(), [Undo::Bury, Undo::RemoveCdi(_), Undo::Forget, Undo::Leave { .. }]));
}

#[test]
fn a_claim_on_all_slots_has_one_cdi_device() {
    let mut world = World { devices: (0..16).map(|i| format!("slot-{i}")).collect(), ..World::new(3) };
    world.isolation = IsolationMode::Domain;
    assert!(world.prepare(start(names::DRIVER), 50));
    world.check_answer();
    assert_eq!(world.answered.unwrap().len(), 16);
}

#[test]
fn all_channels_need_an_exclusive_domain() {
    let mut world = World { allocation: AllocationMode::All, isolation: IsolationMode::Domain, ..World::new(3) };
    assert!(world.prepare(start(names::DRIVER), 50));
    assert_eq!(world.disk.as_ref().unwrap().channel.as_ref().unwrap().all_of, Some(2048));

    let mut known = start(names::DRIVER);
    let mut shared = World { isolation: IsolationMode::Channel, disk: None, ..world };
    for _ in 0..2 {
        let step = next(&known).unwrap();
        shared.run(&mut known, step);
    }
    assert_eq!(next(&known).unwrap_err().class, Class::Permanent);
}

#[test]
fn a_number_outside_1_to_the_last_is_never_given() {
    for channel in [0, 2048, 4000] {
        let mut world = World::new(channel);
        let mut known = start(names::DRIVER);
        for _ in 0..3 {
            let step = next(&known).unwrap();
            world.run(&mut known, step);
        }
        assert_eq!(next(&known).unwrap_err().reason, reason::CHANNEL_CLASH, "{channel}");
    }
}

#[test]
fn an_unhealthy_fabric_is_an_error_and_none_is_not() {
    let mut world = World::new(7);
    let mut known = start(names::DRIVER);
    known.node.fabric = Fabric::Unhealthy("GPU 2 has lost a link".into());
    let step = next(&known).unwrap();
    world.run(&mut known, step);
    let fault = next(&known).unwrap_err();
    assert_eq!((fault.class, fault.reason), (Class::Retryable, reason::FABRIC_UNHEALTHY));

    known.node.fabric = Fabric::None;
    known.node.major = Err(Fault::retryable(reason::NODE_IO, "no channels here"));
    let step = next(&known).unwrap();
    world.run(&mut known, step);
    known.grant = Some(Grant::NoFabric);
    while world.answered.is_none() {
        let step = next(&known).unwrap();
        world.run(&mut known, step);
    }
    assert_eq!(world.disk.as_ref().unwrap().channel, None);
    assert!(!undo(world.disk.as_ref()).iter().any(|effect| matches!(effect, Undo::Leave { .. })));
}

#[test]
fn a_channel_without_a_major_is_not_answered() {
    let mut world = World::new(7);
    let mut known = start(names::DRIVER);
    known.node.major = Err(Fault::retryable(reason::NODE_IO, "no nvidia-caps-imex-channels in /proc/devices"));
    for _ in 0..3 {
        let step = next(&known).unwrap();
        world.run(&mut known, step);
    }
    assert_eq!(next(&known).unwrap_err().reason, reason::NODE_IO);
    assert_eq!(world.disk, None);
}

#[test]
fn gpus_are_answered_with_the_toolkit_s_ids() {
    let mut world = World { devices: vec!["gpu-0".into()], ..World::default() };
    assert!(world.prepare(start(names::GPU_DRIVER), 50));
    assert_eq!(world.answered.as_ref().unwrap()[0].cdi_ids, ["nvidia.com/gpu=GPU-0"]);
    assert_eq!(world.requests, ["claim"]);
    assert!(world.cdi.is_empty() && world.entered.is_empty());
    world.undo(usize::MAX);
    assert_eq!(world.disk, None);

    world.devices = vec!["gpu-7".into()];
    let mut known = start(names::GPU_DRIVER);
    let step = next(&known).unwrap();
    world.run(&mut known, step);
    assert_eq!(next(&known).unwrap_err().class, Class::Retryable);
}

#[test]
fn a_gpu_without_a_toolkit_entry_is_waited_for_before_anything_is_written() {
    let mut world = World { devices: vec!["gpu-0".into()], ..World::default() };
    let mut known = start(names::GPU_DRIVER);
    known.node.toolkit.devices.clear();
    let step = next(&known).unwrap();
    world.run(&mut known, step);
    let Step::AwaitToolkit(missing) = next(&known).unwrap() else { panic!("{:?}", next(&known)) };
    assert_eq!((missing.reason, missing.class), (reason::NO_TOOLKIT_ENTRY, Class::Retryable));
    assert!(missing.message.contains("GPU-0") && missing.message.contains("n1"), "{missing}");
    assert_eq!(world.disk, None);
    known.node = node();
    assert!(world.prepare(known, 50));

    // The kubelet asks again, and the toolkit's file has gone since.
    let mut again = start(names::GPU_DRIVER);
    again.node.toolkit.devices.clear();
    world.read(&mut again);
    assert!(matches!(next(&again), Ok(Step::AwaitToolkit(_))));
}

#[test]
fn a_gpu_that_mig_divides_is_given_to_nobody() {
    let mut world = World { devices: vec!["gpu-0".into()], ..World::default() };
    let mut known = start(names::GPU_DRIVER);
    known.node.mig = ["gpu-0".to_owned()].into();
    let step = next(&known).unwrap();
    world.run(&mut known, step);
    let fault = next(&known).unwrap_err();
    assert!(fault.class == Class::Retryable && fault.message.contains("nvidia-smi -mig 0"), "{fault}");
}
