//! All actors of the agent and who tells whom what, on one page.
//!
//! ```text
//! GpuInventory ── Inventory ──► NodeLink, ChannelAllocator, ImexSupervisor, SlicePublisher, DraServer; Notice ► NodeEvents
//! RuntimeGuard ── Guard ───────► ChannelAllocator, ImexSupervisor; Condition ► NodeLink
//! Preflight ──── Condition ───► NodeLink
//! ModeKeeper ─── Standing ────► ChannelAllocator, ImexSupervisor, NodeLink, PeerIdentity; Condition ► NodeLink; Notice ► NodeEvents
//! NodeLink ───── View ────────► ChannelAllocator, ImexSupervisor, PeerIdentity, ModeKeeper
//! PeerIdentity ── Identities ─► ImexSupervisor; Certificates, Condition ► NodeLink (PeerFiles the same, by files)
//! ImexSupervisor ─ Daemon ────► NodeLink (status), ChannelAllocator (readiness); Usable ► SlicePublisher
//! InvariantWatch hears View, Prepared and Running, and says nothing but in its metrics and the log
//! ChannelAllocator ─ MaySwitch ► ImexSupervisor; Prepared ► ModeKeeper; Restore? ► DraServer; Enter, Leave, Keep ► NodeLink
//! DraServer ──── Restore, Enter, Leave … ► ChannelAllocator; Refused ► ClaimEvents
//! ```
//!
//! While another agent acts for the node, only RuntimeGuard, ClaimEvents, HealthProbe and DraServer run, and the last
//! answers from checkpoints: see [`Turn`].

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use heddle_core::claim::Prepared;
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::Authentication;
use heddle_core::imex::Standing;

use super::Settings;
use super::metrics::NodeMetrics;
use super::tell::{Later, Word};
use crate::channel_allocator::{self, ChannelAllocator};
use crate::dra::{ClaimEvents, ClaimMetrics, DraDependencies, DraServer, DraSettings, HealthBoard, HealthProbe};
use crate::gpu_inventory::{self, GpuInventory};
use crate::imex_mode::{self, ModeKeeper};
use crate::imex_supervisor::{self, HostImex, HostTiming, ImexSupervisor, Running};
use crate::invariants::{self, InvariantMetrics, InvariantWatch};
use crate::node_events::{self, NodeEvents};
use crate::node_link::{self, NodeFacts, NodeLink};
use crate::nvml::Sysfs;
use crate::nvml::devices::Devices;
use crate::peer_identity::{self, Identities, PeerFiles, PeerIdentity, unauthenticated};
use crate::preflight::{self, Preflight};
use crate::runtime::{Runtime, Spec, Turn};
use crate::runtime_guard::{self, GuardMetrics, RuntimeGuard};
use crate::slice_publisher::{self, DEFAULT_GRACE, SlicePublisher};

/// How often NVML is read: changes of the fabric come without a notice.
const INVENTORY_POLL: Duration = Duration::from_secs(5);

/// How often the checks of the node are made: all is well, or something fails.
const CHECKS: Duration = Duration::from_secs(15 * 60);
const CHECKS_WHILE_FAILING: Duration = Duration::from_secs(60);

/// Starts every actor below the root: those that act for the node with the `turn`.
pub(super) fn wire(runtime: &Runtime, settings: &Settings, turn: &Turn, probes: Option<TcpListener>) {
    let root = &runtime.root();
    let client = || settings.client.clone();
    let dra = DraSettings {
        node_name: settings.node_name.clone(),
        pod_uid: settings.pod_uid.clone(),
        plugins_dir: settings.plugins_dir.clone(),
        registry_dir: settings.registry_dir.clone(),
        cdi_dir: settings.cdi_dir.clone(),
        cdi_static_dir: settings.cdi_static_dir.clone(),
        state_dir: settings.state_dir.clone(),
        gpus: settings.gpus,
        proc_root: settings.proc_root.clone(),
        metrics: runtime.metrics().register(ClaimMetrics::register),
    };
    let health = HealthBoard::default();

    let (to_link, to_allocator, to_supervisor) = (Later::default(), Later::default(), Later::default());
    let (to_publisher, to_server) = (Later::default(), Later::<crate::dra::Message>::default());

    let inventory = Word::new();
    let view = Word::new();
    let status = Word::new();
    let ready = Word::new();
    let usable = Word::new();
    let may_switch = Word::new();
    let guard = Word::new();
    let guarded = Word::new();
    let (identities, identified, certificates) = (Word::<Identities>::new(), Word::new(), Word::new());
    let to_identity = Later::default();
    let checked = Word::new();
    let (standing, moded, prepared) = (Word::<Standing>::new(), Word::new(), Word::<Vec<Prepared>>::new());
    let (running, to_invariants) = (Word::<Running>::new(), Later::default());
    let authentication = Word::new();
    let (to_mode, to_events) = (Later::default(), Later::<node_events::Message>::default());

    let again = [
        inventory.heard_by(&to_link, node_link::Message::Inventory),
        status.heard_by(&to_link, node_link::Message::Daemon),
        guarded.heard_by(&to_link, node_link::Message::Condition),
        identified.heard_by(&to_link, node_link::Message::Condition),
        certificates.heard_by(&to_link, node_link::Message::Certificates),
        checked.heard_by(&to_link, node_link::Message::Condition),
        moded.heard_by(&to_link, node_link::Message::Condition),
        standing.heard_by(&to_link, node_link::Message::Standing),
        authentication.heard_by(&to_link, node_link::Message::Authentication),
    ];
    let (metrics, tell_view) = (runtime.metrics().register(NodeMetrics::register), view.teller());
    let link_settings = node_link::Settings {
        client: client(),
        node_name: settings.node_name.clone(),
        facts: facts(settings),
        view: Rc::new(move |view| {
            metrics.show(&view);
            tell_view(view);
        }),
    };
    let acting = Spec { after: Some(turn.clone()), ..Spec::default() };
    let gating = Spec { gates_readiness: true, ..acting.clone() };
    let link = root.supervise(gating.clone(), move || {
        again.iter().for_each(|tell| tell());
        Ok(NodeLink::new(link_settings.clone()))
    });
    to_link.set(&link);

    let again = [
        inventory.heard_by(&to_allocator, channel_allocator::Message::Inventory),
        view.heard_by(&to_allocator, channel_allocator::Message::View),
        ready.heard_by(&to_allocator, channel_allocator::Message::Daemon),
        guard.heard_by(&to_allocator, channel_allocator::Message::Guard),
        standing.heard_by(&to_allocator, channel_allocator::Message::Standing),
    ];
    let server = to_server.clone();
    let allocator_settings = channel_allocator::Settings {
        client: client(),
        node_link: link,
        may_switch: may_switch.teller(),
        prepared: prepared.teller(),
        standing: None,
        restore: Rc::new(move || server.tell(crate::dra::Message::Restore)),
    };
    let allocator = root.supervise(acting.clone(), move || {
        again.iter().for_each(|tell| tell());
        Ok(ChannelAllocator::new(allocator_settings.clone()))
    });
    to_allocator.set(&allocator);

    let again = [
        inventory.heard_by(&to_supervisor, imex_supervisor::Message::Inventory),
        view.heard_by(&to_supervisor, imex_supervisor::Message::View),
        may_switch.heard_by(&to_supervisor, imex_supervisor::Message::MaySwitch),
        guard.heard_by(&to_supervisor, imex_supervisor::Message::Guard),
        identities.heard_by(&to_supervisor, imex_supervisor::Message::Identities),
        standing.heard_by(&to_supervisor, imex_supervisor::Message::Standing),
    ];
    let supervisor_settings = imex_supervisor::Settings {
        socket: settings.runner_socket.clone(),
        host: host_imex(settings),
        standing: None,
        allocator: allocator.clone(),
        authentication: settings.authentication,
        status: status.teller(),
        ready: ready.teller(),
        usable: usable.teller(),
        running: running.teller(),
    };
    let supervisor = root.supervise(acting.clone(), move || {
        again.iter().for_each(|tell| tell());
        Ok(ImexSupervisor::new(supervisor_settings.clone()))
    });
    to_supervisor.set(&supervisor);

    authentication.teller()(settings.authentication);
    match settings.authentication {
        Authentication::DomainCa => {
            let again = [
                standing.heard_by(&to_identity, peer_identity::Message::Standing),
                view.heard_by(&to_identity, peer_identity::Message::View),
            ];
            let identity_settings = peer_identity::Settings {
                client: client(),
                node_name: settings.node_name.clone(),
                state_dir: settings.state_dir.clone(),
                seconds: settings.certificate_seconds,
                identities: identities.teller(),
                condition: identified.teller(),
                certificates: certificates.teller(),
            };
            let identity = root.supervise(acting.clone(), move || {
                again.iter().for_each(|tell| tell());
                PeerIdentity::new(identity_settings.clone())
            });
            to_identity.set(&identity);
        }
        Authentication::Files => {
            certificates.teller()(BTreeMap::new());
            let files_settings = peer_identity::FilesSettings {
                folder: settings.certificates_dir.clone(),
                identities: identities.teller(),
                condition: identified.teller(),
            };
            root.supervise(acting.clone(), move || Ok(PeerFiles::new(files_settings.clone())));
        }
        Authentication::Gss | Authentication::Insecure => {
            certificates.teller()(BTreeMap::new());
            identified.teller()(unauthenticated(settings.authentication));
        }
    }

    let again = [
        view.heard_by(&to_mode, imex_mode::Message::View),
        prepared.heard_by(&to_mode, |claims| imex_mode::Message::Prepared(claims.len())),
    ];
    let events = to_events.clone();
    let mode_settings = imex_mode::Settings {
        wanted: settings.imex_mode,
        state_dir: settings.state_dir.clone(),
        standing: standing.teller(),
        condition: moded.teller(),
        notices: Rc::new(move |notice| events.tell(node_events::Message::Notice(notice))),
    };
    let mode = root.supervise(acting.clone(), move || {
        again.iter().for_each(|tell| tell());
        Ok(ModeKeeper::new(mode_settings.clone()))
    });
    to_mode.set(&mode);

    let again = [
        view.heard_by(&to_invariants, invariants::Message::View),
        prepared.heard_by(&to_invariants, invariants::Message::Prepared),
        running.heard_by(&to_invariants, invariants::Message::Running),
    ];
    let metrics = runtime.metrics().register(InvariantMetrics::register);
    let invariants = root.supervise(acting.clone(), move || {
        again.iter().for_each(|tell| tell());
        Ok(InvariantWatch::new(metrics.clone()))
    });
    to_invariants.set(&invariants);

    let again = [
        inventory.heard_by(&to_publisher, slice_publisher::Message::Inventory),
        usable.heard_by(&to_publisher, slice_publisher::Message::Usable),
    ];
    let publisher_settings = slice_publisher::Settings {
        node_name: settings.node_name.clone(),
        slots: settings.slots,
        drivers: dra.drivers(),
        grace: DEFAULT_GRACE,
        client: client(),
        health: health.clone(),
    };
    let publisher = root.supervise(gating.clone(), move || {
        again.iter().for_each(|tell| tell());
        Ok(SlicePublisher::new(publisher_settings.clone()))
    });
    to_publisher.set(&publisher);

    let (events_client, node_name) = (client(), settings.node_name.clone());
    let events = root.supervise(Spec::default(), move || Ok(ClaimEvents::new(events_client.clone(), &node_name)));

    // A server that is built anew is given the inventory: it has to be there before the first claim.
    let _ = inventory.heard_by(&to_server, crate::dra::Message::Inventory);
    if let Some(listener) = probes {
        let dra = dra.clone();
        root.supervise(Spec::default(), move || {
            let listener = listener.try_clone().map_err(|error| Fault::retryable(reason::ACTOR_FAILED, error))?;
            Ok(HealthProbe::new(listener, &dra))
        });
    }
    let dependencies = DraDependencies {
        settings: dra,
        client: client(),
        allocator,
        events,
        health,
        scope: root.child("dra"),
        turn: turn.clone(),
        inventory: None,
    };
    let known = inventory.clone();
    let server = root.supervise(DraServer::spec(), move || {
        DraServer::new(DraDependencies { inventory: known.last(), ..dependencies.clone() })
    });
    to_server.set(&server);

    // The rest last, so that everybody is there to listen.
    let (tell_guard, tell_condition) = (guard.teller(), guarded.teller());
    let guard_settings = runtime_guard::Settings {
        mode: settings.runtime_guard,
        host: settings.host.clone(),
        places: settings.places.clone(),
        guard: Rc::new(move |guard| {
            guard.condition().into_iter().for_each(|draft| tell_condition(draft));
            tell_guard(guard);
        }),
        metrics: runtime.metrics().register(GuardMetrics::register),
    };
    root.supervise(Spec::default(), move || Ok(RuntimeGuard::new(guard_settings.clone())));

    let preflight_settings = preflight::ActorSettings {
        places: places(settings),
        while_failing: CHECKS_WHILE_FAILING,
        otherwise: CHECKS,
        condition: checked.teller(),
    };
    root.supervise(acting.clone(), move || Ok(Preflight::new(preflight_settings.clone())));

    let (events_client, node_name) = (client(), settings.node_name.clone());
    let node_events = root.supervise(acting, move || Ok(NodeEvents::new(events_client.clone(), &node_name)));
    to_events.set(&node_events);
    let inventory_settings = gpu_inventory::Settings {
        driver_root: settings.driver_root.clone(),
        devices: Devices::new(&settings.proc_root),
        sysfs: Sysfs::new(&settings.sys_root),
        poll: INVENTORY_POLL,
        access: settings.fabric_access,
        ignored_xids: settings.ignored_xids.iter().copied().collect(),
        record: settings.state_dir.join("xids.json"),
        inventory: inventory.teller(),
        notices: Rc::new(move |notice| node_events.tell(node_events::Message::Notice(notice))),
    };
    root.supervise(gating, move || Ok(GpuInventory::new(inventory_settings.clone())));
}

/// Where a daemon that the host runs is asked.
fn host_imex(settings: &Settings) -> HostImex {
    HostImex {
        driver_root: settings.driver_root.clone(),
        enter: settings.enter.clone(),
        build: settings.state_dir.clone(),
        control_socket: settings.control_socket.clone(),
        host: settings.host.clone(),
        config: settings.host_imex_config.clone(),
        addresses: settings.node_addresses.clone(),
        runner_socket: settings.runner_socket.clone(),
        timing: HostTiming::default(),
    }
}

/// Where the checks of the node look.
fn places(settings: &Settings) -> preflight::Settings {
    preflight::Settings {
        client: Some(settings.client.clone()),
        node_name: Some(settings.node_name.clone()),
        pod_uid: Some(settings.pod_uid.clone()),
        driver_root: settings.driver_root.clone(),
        proc_root: settings.proc_root.clone(),
        access: settings.fabric_access,
        plugins_dir: settings.plugins_dir.clone(),
        registry_dir: settings.registry_dir.clone(),
        cdi_dir: settings.cdi_dir.clone(),
        state_dir: settings.state_dir.clone(),
        runner_socket: settings.runner_socket.clone(),
        imex_mode: settings.imex_mode,
        slots: settings.slots,
        host: settings.host.clone(),
        places: settings.places.clone(),
        runtime_guard: settings.runtime_guard,
        container_runtime_version: settings.container_runtime_version.clone(),
    }
}

/// What the node's files say; what they don't is none, and asked again with the next inventory.
fn facts(settings: &Settings) -> Rc<dyn Fn() -> NodeFacts> {
    let devices = Devices::new(&settings.proc_root);
    let addresses: Vec<String> = settings.node_addresses.iter().map(ToString::to_string).collect();
    let said = |fault: &_| tracing::debug!("a fact of the node is not known: {fault}");
    Rc::new(move || NodeFacts {
        boot_id: devices.boot_id().inspect_err(said).ok(),
        channel_count: devices.channel_count().inspect_err(said).ok(),
        addresses: addresses.clone(),
    })
}
