//! Where cargo puts the built library, and how it gets into a driver root.

use std::io;
use std::path::{Path, PathBuf};

const BUILT: &str = "libheddle_fake_nvml.so";

/// The cdylib that was built together with the running program.
///
/// Cargo builds all crate types of a dependency, and leaves this one in `target/<profile>/deps/`: beside a test's
/// program, and in the folder `deps` beside a binary. An installed program has it beside itself or not at all.
pub fn built_library() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join("deps").join(BUILT), folder.join(BUILT)];
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let text = format!(
            "no {BUILT} at {} or {}: run this program by cargo, or copy the library beside it",
            places[0].display(),
            places[1].display()
        );
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Puts the library into a driver root, as `usr/lib64/libnvidia-ml.so.1`.
pub fn install(driver_root: &Path) -> io::Result<PathBuf> {
    let folder = driver_root.join("usr/lib64");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("libnvidia-ml.so.1");
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::os::unix::fs::symlink(built_library()?, &path)?,
    }
    Ok(path)
}
