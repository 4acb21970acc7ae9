//! A driver root with the fake daemon in it, and with a loader and libraries of its own: a program of it does not start in any
//! other root.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};

/// Where its libraries are. Debian has its own in a folder below.
pub const LIBRARIES: &str = "usr/lib";

/// Makes one of a binary that acts as the program that it is called by.
///
/// # Errors
/// When the binary's libraries are not found, or a file cannot be written.
pub fn make(binary: &Path, root: &Path) -> Result<()> {
    for folder in ["usr/bin", LIBRARIES, "etc"] {
        fs::create_dir_all(root.join(folder))?;
    }
    // Loaders look into one of them or another, by distribution.
    for (link, target) in [("lib", "usr/lib"), ("lib64", "usr/lib64"), ("usr/lib64", "lib"), ("bin", "usr/bin")] {
        symlink(target, root.join(link))?;
    }
    let mut image = fs::read(binary).with_context(|| format!("{} could not be read", binary.display()))?;
    if let Some(place) = interpreter(&image) {
        let loader = String::from_utf8_lossy(&image[place.clone()]).into_owned();
        for library in libraries(&loader, binary)? {
            let name = library.file_name().context("a library has no name")?;
            copy(&library, &root.join(LIBRARIES).join(name))?;
        }
        let own = renamed(&loader).with_context(|| format!("the loader {loader} has a name that is too short"))?;
        image[place].copy_from_slice(own.as_bytes());
        copy(Path::new(&loader), &root.join(own.trim_start_matches('/')))?;
    }
    write_program(&image, &root.join("usr/bin/nvidia-imex"))?;
    fs::hard_link(root.join("usr/bin/nvidia-imex"), root.join("usr/bin/nvidia-imex-ctl"))?;
    Ok(())
}

/// A second one that shares the files of the first.
///
/// # Errors
/// When a file cannot be made.
pub fn share(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let kind = fs::symlink_metadata(&path)?.file_type();
        let place = to.join(name);
        if kind.is_symlink() {
            symlink(fs::read_link(&path)?, place)?;
        } else if kind.is_dir() {
            share(&path, &place)?;
        } else {
            fs::hard_link(&path, place)?;
        }
    }
    Ok(())
}

/// Whether a daemon can be given a root of its own by this binary, or else why not.
///
/// # Errors
/// The binary's own words.
pub fn may_isolate(binary: &Path) -> Result<(), String> {
    static ANSWER: LazyLock<std::sync::Mutex<Option<Result<(), String>>>> = LazyLock::new(Default::default);
    let mut answer = ANSWER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    answer.get_or_insert_with(|| probe(binary)).clone()
}

fn probe(binary: &Path) -> Result<(), String> {
    let output = Command::new(binary).args(["imex-enter", "\"probe\""]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("no reason is given");
    if output.status.success() {
        Ok(())
    } else {
        Err(last.rsplit_once("imex-enter: ").map_or(last, |(_, why)| why).to_owned())
    }
}

/// Where in a 64-bit ELF image the name of its loader is; none if it needs none.
fn interpreter(image: &[u8]) -> Option<std::ops::Range<usize>> {
    /// Type of the program header that names it.
    const PT_INTERP: u64 = 3;
    let number = |at: usize, size: usize| {
        let bytes = image.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let headers = (0..count).filter_map(|index| usize::try_from(table + index * size).ok());
    let header = headers.into_iter().find(|at| number(*at, 4) == Some(PT_INTERP))?;
    let (offset, length) = (number(header + 8, 8)?, number(header + 32, 8)?);
    // Without the zero at its end.
    Some(usize::try_from(offset).ok()?..usize::try_from(offset + length - 1).ok()?)
}

/// A name of the same length that no system has.
fn renamed(loader: &str) -> Option<String> {
    let (folder, name) = loader.rsplit_once('/')?;
    let own: String = "fake-loader-for-heddle-demo-and-tests".chars().take(name.len().checked_sub(3)?).collect();
    let padded = format!("{own:-<width$}", width = name.len() - 3);
    Some(format!("{folder}/{padded}.so"))
}

/// The libraries of a binary, by its loader's own word.
fn libraries(loader: &str, binary: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new(loader).arg("--list").arg(binary).env_remove("LD_LIBRARY_PATH").output();
    let output = output.with_context(|| format!("{loader} could not be started"))?;
    if !output.status.success() {
        bail!(
            "{loader} does not list the libraries of {}: {}",
            binary.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`
    let text = String::from_utf8(output.stdout)?;
    let path = |line: &str| line.split_once(" => ")?.1.split_whitespace().next().map(PathBuf::from);
    Ok(text.lines().filter_map(path).filter(|path| path.is_absolute()).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("{} could not be copied to {}", from.display(), to.display()))
}

/// By a process of its own: a file that a fork of somebody else's holds open for writing cannot be executed.
fn write_program(image: &[u8], place: &Path) -> Result<()> {
    let mut shell = Command::new("sh")
        .args(["-c", r#"cat > "$1" && chmod 755 "$1""#, "sh"])
        .arg(place)
        .stdin(Stdio::piped())
        .spawn()
        .context("no shell could be started")?;
    shell.stdin.take().context("the shell reads nothing")?.write_all(image)?;
    if !shell.wait()?.success() {
        bail!("{} could not be written", place.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_it_starts_in_no_other_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("driver");
        // Any program with a loader; it is not called by its name here.
        let binary = fs::canonicalize("/usr/bin/env").unwrap();
        make(&binary, &root).unwrap();
        let program = root.join("usr/bin/nvidia-imex");
        let error = Command::new(&program).arg("true").status().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        let image = fs::read(&program).unwrap();
        let loader = String::from_utf8_lossy(&image[interpreter(&image).unwrap()]).into_owned();
        let loader = root.join(&loader[1..]);
        assert!(
            Command::new(loader)
                .arg("--library-path")
                .arg(root.join(LIBRARIES))
                .arg(&program)
                .status()
                .unwrap()
                .success()
        );
        share(&root, &folder.path().join("second")).unwrap();
        assert!(folder.path().join("second/lib64/libc.so.6").exists());
    }
}
