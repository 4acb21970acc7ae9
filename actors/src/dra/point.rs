//! Places where a test lets the disk fail, or cuts the process off.

/// Stands before each call that changes something on disk, and is named after it: `mkdir`, `create`, `write`,
/// `fsync-file`, `rename`, `fsync-dir`, `unlink`. Without the feature `failpoints` it is nothing.
///
/// # Errors
/// The one that a test wants, by its number.
#[cfg(feature = "failpoints")]
pub(crate) fn point(name: &'static str) -> std::io::Result<()> {
    fail::fail_point!(name, |code: Option<String>| {
        let code = code.and_then(|code| code.parse().ok()).expect("a fail point is given the number of an error");
        Err(std::io::Error::from_raw_os_error(code))
    });
    Ok(())
}

/// Nothing: this build has no fail points.
#[cfg(not(feature = "failpoints"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it fails when a test says so")]
pub(crate) const fn point(_name: &'static str) -> std::io::Result<()> {
    Ok(())
}
