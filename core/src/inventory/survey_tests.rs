use uuid::Uuid;

use super::super::{Channels, FabricInfo, FabricReading, GpuReading, Unreadable};
use super::*;

fn gpu(index: u32) -> GpuReading {
    let info = FabricInfo { state: 3, cluster: Uuid::from_u128(9), cliques: vec![(0, 7)], ..FabricInfo::default() };
    GpuReading { index, uuid: format!("GPU-{index}"), fabric: FabricReading::Info(info), ..GpuReading::default() }
}

fn reading() -> Reading {
    let channels = Channels { major: Some(234), count: Some(2048) };
    Reading { gpus: vec![gpu(0), gpu(1)], driver_version: "595".into(), channels, ..Reading::default() }
}

fn xid(uuid: &str, xid: u64) -> GpuEvent {
    GpuEvent { uuid: uuid.into(), happening: Happening::Xid(xid) }
}

fn surveyed() -> Survey {
    let mut survey = Survey::default();
    assert_eq!(survey.see(&reading()), []);
    survey
}

fn troubles(survey: &Survey) -> Vec<Option<String>> {
    survey.last().unwrap().gpus.iter().map(super::super::Gpu::trouble).collect()
}

fn reasons(notices: &[Notice]) -> Vec<&'static str> {
    notices.iter().map(|notice| notice.reason).collect()
}

#[test]
fn an_xid_makes_its_gpu_unhealthy_at_once_and_is_said_once() {
    let mut survey = surveyed();
    let (notices, look) = survey.hear(&xid("GPU-1", 79));
    assert_eq!((reasons(&notices), look), (vec!["GpuUnhealthy"], true));
    assert!(notices[0].note.contains("GPU-1") && notices[0].note.contains("XID 79"), "{notices:?}");
    assert_eq!(troubles(&survey), [None, Some("XID 79 (GPU has fallen off the bus)".into())]);
    assert!(matches!(survey.last().unwrap().fabric, Fabric::Ready(_)), "the other GPUs go on");
    assert_eq!(survey.hear(&xid("GPU-1", 79)).0, []);
    assert_eq!(survey.see(&reading()), [], "a reading forgets nothing");
    assert!(troubles(&survey)[1].is_some());
}

#[test]
fn an_applications_xid_is_said_and_changes_nothing() {
    let mut survey = surveyed();
    let (notices, look) = survey.hear(&xid("GPU-0", 31));
    assert_eq!((reasons(&notices), notices[0].warning, look), (vec!["GpuXid"], false, false));
    assert_eq!(troubles(&survey), [None, None]);
    assert_eq!(survey.hear(&xid("GPU-0", 154)), (Vec::new(), true));
    assert_eq!(troubles(&survey), [None, None]);
}

#[test]
fn an_xid_before_the_first_reading_counts() {
    let mut survey = Survey::default();
    assert_eq!(survey.hear(&xid("GPU-0", 48)), (Vec::new(), true));
    assert_eq!(reasons(&survey.see(&reading())), ["GpuUnhealthy"]);
    assert!(troubles(&survey)[0].is_some());
}

#[test]
fn a_recovery_action_that_comes_and_goes_heals() {
    let mut survey = surveyed();
    survey.hear(&xid("GPU-0", 48));
    let mut action = reading();
    action.gpus[0].recovery_action = 1;
    assert_eq!(reasons(&survey.see(&action)), ["GpuUnhealthy"]);
    assert!(troubles(&survey)[0].as_ref().unwrap().contains("reset the GPU"));
    assert_eq!(survey.last().unwrap().recovery_action.as_deref(), Some("GPU 0: reset the GPU"));
    assert_eq!(reasons(&survey.see(&reading())), ["GpuHealthy"]);
    assert_eq!((troubles(&survey)[0].clone(), &survey.last().unwrap().recovery_action), (None, &None));
}

#[test]
fn a_lost_gpu_stays_in_the_list_and_is_not_to_be_used() {
    let mut survey = surveyed();
    let mut lost = reading();
    lost.gpus.remove(0);
    lost.unreadable.push(Unreadable { index: 0, lost: true, why: "GPU is lost".into() });
    assert_eq!(reasons(&survey.see(&lost)), ["GpuUnhealthy", "FabricUnhealthy"]);
    assert_eq!(troubles(&survey), [Some("it is lost: GPU is lost".into()), None]);
    assert_eq!(survey.see(&lost), [], "and stays so");
    assert_eq!(troubles(&survey).len(), 2);
    assert_eq!(reasons(&survey.see(&reading())), ["GpuHealthy", "FabricHealthy"]);

    let mut unknown = Survey::default();
    unknown.see(&lost);
    assert_eq!(unknown.last().unwrap().gpus.len(), 1, "one that was never read has no name");
}

#[test]
fn a_driver_that_goes_away_takes_nothing_with_it_but_use() {
    let mut survey = surveyed();
    survey.hear(&xid("GPU-0", 79));
    survey.fail("the driver is not loaded", true);
    let last = survey.last().unwrap();
    assert_eq!(last.gpus.len(), 2);
    assert!(matches!(&last.fabric, Fabric::Unhealthy(why) if why.contains("not loaded")));
    assert!(troubles(&survey)[1].as_ref().unwrap().contains("cannot be read"));
    survey.see(&reading());
    assert_eq!(troubles(&survey), [None, None], "the new driver has found the GPU anew");
}

#[test]
fn a_hanging_call_heals_no_gpu() {
    let mut survey = surveyed();
    survey.hear(&xid("GPU-0", 119));
    survey.fail("NVML has not answered", false);
    survey.see(&reading());
    assert!(troubles(&survey)[0].is_some());
}

#[test]
fn a_node_whose_driver_has_not_come_yet_waits() {
    let mut survey = Survey::default();
    survey.fail("no library", false);
    assert!(matches!(survey.last().unwrap().fabric, Fabric::Pending(_)));
}

#[test]
fn a_clique_that_changes_at_run_time_is_said() {
    let mut survey = surveyed();
    let mut moved = reading();
    for gpu in &mut moved.gpus {
        let FabricReading::Info(info) = &mut gpu.fabric else { unreachable!() };
        info.cliques = vec![(0, 8)];
    }
    let notices = survey.see(&moved);
    assert_eq!(reasons(&notices), ["CliqueChanged"]);
    assert!(notices[0].note.contains(".7") && notices[0].note.contains(".8"), "{notices:?}");
}

#[test]
fn a_gpu_with_mig_is_said_to_be_withheld() {
    let mut survey = surveyed();
    let mut mig = reading();
    mig.gpus[1].mig = true;
    let notices = survey.see(&mig);
    assert!(reasons(&notices) == ["GpuUnhealthy"] && notices[0].note.contains("nvidia-smi -mig 0"), "{notices:?}");
}

#[test]
fn a_kernel_module_without_channels_is_said() {
    for count in [0, 1] {
        let mut survey = Survey::default();
        let without = Reading { channels: Channels { major: None, count: Some(count) }, ..reading() };
        let notices = survey.see(&without);
        assert!(reasons(&notices) == ["NoImexChannels"] && notices[0].note.contains("ImexChannelCount"), "{notices:?}");
        assert_eq!(survey.see(&without), []);
        assert!(survey.last().unwrap().channels_usable().is_err());
    }
    let unknown = Reading { channels: Channels::default(), ..reading() };
    assert!(inventory(&unknown, Access::default()).channels_usable().is_ok(), "it is waited for");
}
