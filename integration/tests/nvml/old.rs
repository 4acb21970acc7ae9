//! Libraries that lack symbols: really other ones, compiled for the test by the compiler that links Rust programs too.

use std::path::Path;
use std::process::Command;

use heddle_actors::nvml::Library;
use heddle_core::inventory::FabricReading;

const BEGIN: &str = "int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { v[0] = '4'; v[1] = 0; return 0; }
";
const GPU: &str = "static int text(char *to, const char *from) { while ((*to++ = *from++)); return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *d, char *t, unsigned n) { return text(t, \"GPU-old\"); }
int nvmlDeviceGetName(void *d, char *t, unsigned n) { return text(t, \"Old GPU\"); }
int nvmlDeviceGetPciInfo_v3(void *d, char *p) { for (int i = 0; i < 68; i++) p[i] = 0; return text(p + 36, \"00000000:01:00.0\"); }
";

fn compile(root: &Path, source: &str) {
    let folder = root.join("usr/lib64");
    std::fs::create_dir_all(&folder).unwrap();
    let file = root.join("old.c");
    std::fs::write(&file, source).unwrap();
    let library = folder.join("libnvidia-ml.so.1");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &file]).status().unwrap();
    assert!(compiled.success());
}

#[test]
fn a_library_older_than_every_call_we_can_do_without_is_read() {
    let root = tempfile::tempdir().unwrap();
    compile(root.path(), &format!("{BEGIN}{GPU}"));
    let reading = Library::open(root.path()).unwrap().read().unwrap();
    assert_eq!(reading.unreadable, []);
    let gpu = &reading.gpus[0];
    assert_eq!((gpu.uuid.as_str(), gpu.name.as_str()), ("GPU-old", "Old GPU"));
    assert_eq!((gpu.module_id, gpu.minor, gpu.recovery_action, gpu.mig), (None, None, 0, false));
    assert_eq!(gpu.fabric, FabricReading::Unsupported, "no layout of the fabric info is there");
}

#[test]
fn a_library_without_an_end_is_not_begun_with() {
    let root = tempfile::tempdir().unwrap();
    compile(root.path(), BEGIN);
    let failure = Library::open(root.path()).unwrap_err();
    assert!(failure.to_string().contains("R570 or newer"), "{failure}");
}

#[test]
fn a_library_that_does_not_count_is_a_failure_and_no_panic() {
    let root = tempfile::tempdir().unwrap();
    compile(root.path(), &format!("{BEGIN}int nvmlShutdown(void) {{ return 0; }}"));
    let failure = Library::open(root.path()).unwrap().read().unwrap_err();
    assert!(failure.to_string().contains("cannot count the GPUs"), "{failure}");
}
