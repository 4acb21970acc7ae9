//! What NVML says, at random: the slices that come of it are those that an API server takes.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use heddle_core::api::DomainKind;
use heddle_core::inventory::{Access, FabricInfo, FabricReading, GpuReading, Reading, Unreadable, inventory};
use heddle_core::slices::{self, Change};
use heddle_core::{clique::CliqueId, inventory::Fabric, names};
use heddle_integration::api::{ApiServer, Options};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

/// A GPU as NVML may describe it: by the kind of each value, with no sense between them.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Gpu {
    minor: Option<u8>,
    texts: [Text; 4],
    numbers: [u32; 4],
    capability: (i32, i32),
    memory: u64,
    module: Option<u32>,
    state: u8,
    status: u8,
    cliques: Vec<(u8, u32)>,
    mig: u8,
}

/// Random text, or one that looks right.
#[derive(Clone, Debug, bolero::TypeGenerator)]
enum Text {
    Any(String),
    Long(u8, char),
    Bus(u32, u8, u8),
    Version(u32, u16, u8),
    Empty,
}

impl Text {
    fn text(&self) -> String {
        match self {
            Self::Any(text) => text.clone(),
            Self::Long(times, letter) => letter.to_string().repeat(*times as usize),
            Self::Bus(domain, bus, device) => format!("{domain:08X}:{bus:02X}:{device:02X}.0"),
            Self::Version(major, minor, patch) => format!("{major}.{minor:03}.{patch:02}"),
            Self::Empty => String::new(),
        }
    }
}

fn reading(gpus: &[Gpu], driver: &Text, cuda: i32, lost: bool) -> Reading {
    // NVML numbers its devices, and so does the kernel: each has a number of its own.
    let mut minors = BTreeSet::new();
    let gpus = (0..).zip(gpus).filter_map(|(index, gpu)| {
        let minor = gpu.minor.map(u32::from);
        minors.insert(minor.unwrap_or(index)).then(|| GpuReading {
            index,
            minor,
            uuid: gpu.texts[0].text(),
            name: gpu.texts[1].text(),
            brand: gpu.numbers[0] % 32,
            architecture: gpu.numbers[1] % 32,
            compute_capability: gpu.capability,
            pci_bus_id: gpu.texts[2].text(),
            memory_bytes: gpu.memory,
            module_id: gpu.module,
            fabric: FabricReading::Info(FabricInfo {
                state: gpu.state % 5,
                status: u32::from(gpu.status) % 3,
                cluster: uuid::Uuid::from_u128(u128::from(gpu.numbers[2]) % 3),
                cliques: gpu.cliques.iter().map(|(kind, id)| (kind % 6, *id)).collect(),
                health_mask: gpu.module,
                health_summary: Some(gpu.status % 5),
            }),
            recovery_action: gpu.numbers[3] % 12,
            mig: gpu.mig == 0,
            numa_node: gpu.module,
            pcie_root: Some(gpu.texts[3].text()),
        })
    });
    Reading {
        gpus: gpus.take(16).collect(),
        unreadable: lost.then(|| Unreadable { index: 99, lost, why: driver.text() }).into_iter().collect(),
        driver_version: driver.text(),
        cuda_driver_version: cuda,
        ..Reading::default()
    }
}

/// The API server takes them, gives them back as they were written, and so nothing is written again.
async fn taken(api: &Api<ResourceSlice>, driver: &str, devices: &[Device]) {
    if devices.is_empty() {
        return;
    }
    let plan = slices::plan([].iter(), driver, "n1", devices);
    let [Change::Create(slice)] = &plan[..] else { panic!("{plan:?}") };
    let made = api.create(&PostParams::default(), slice).await.unwrap_or_else(|error| {
        panic!("{error}\n{}", serde_json::to_string_pretty(&slice.spec).unwrap());
    });
    assert_eq!(slices::plan([&made].into_iter(), driver, "n1", devices), [], "it would be written for ever");
    api.delete(made.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
}

#[test]
fn whatever_nvml_says_the_slices_are_valid_and_stay_as_they_are() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { ApiServer::new(Options::default()).client() });
    // After a failure nothing of it is used again but to find the smallest one.
    let api = AssertUnwindSafe((Api::<ResourceSlice>::all(client), runtime));
    bolero::check!().with_type::<(Vec<Gpu>, Text, i32, u8)>().with_iterations(400).for_each(
        |(gpus, driver, cuda, lost)| {
            let (api, runtime) = &*api;
            for access in Access::ALL {
                let found = inventory(&reading(gpus, driver, *cuda, *lost == 0), access);
                runtime.block_on(taken(api, names::GPU_DRIVER, &slices::gpus(&found)));
                let mut slots = slices::slots(16, &found.fabric, Some(DomainKind::Shared));
                slices::taint_slots(&mut slots, "DaemonNotReady");
                runtime.block_on(taken(api, names::DRIVER, &slots));
            }
        },
    );
}

/// A clique comes out as it went in, whatever its numbers.
#[test]
fn a_clique_s_key_is_read_again() {
    bolero::check!().with_type::<(u128, u32)>().with_iterations(2_000).for_each(|(cluster, id)| {
        let clique = CliqueId { cluster: uuid::Uuid::from_u128(*cluster), id: *id };
        assert_eq!(clique.to_string().parse::<CliqueId>().unwrap(), clique);
        let slots = slices::slots(1, &Fabric::Ready(clique), None);
        let said = slots[0].attributes.as_ref().unwrap()["clique"].string.as_ref().unwrap();
        assert_eq!(said.parse::<CliqueId>().unwrap(), clique);
    });
}
