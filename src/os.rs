//! What differs between operating systems: stop signals and file modes.

use std::{io, path::Path};

/// Waits for one request to stop: SIGINT or SIGTERM, or Ctrl-C where there are no signals.
///
/// # Errors
/// When the system does not let us listen.
#[cfg(unix)]
pub async fn stop_signal() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Waits for one request to stop: SIGINT or SIGTERM, or Ctrl-C where there are no signals.
///
/// # Errors
/// When the system does not let us listen.
#[cfg(not(unix))]
pub async fn stop_signal() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

/// Writes a file only its owner may read (mode 0600 where there are modes), whole or not at all.
///
/// # Errors
/// Those of the file system.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let temporary = path.with_extension("tmp");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}

/// Makes a folder only its owner may enter (mode 0700 where there are modes).
///
/// # Errors
/// Those of the file system.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

/// The machine's name, for the prompt's runtime line.
pub fn host_name() -> String {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::fs::read_to_string("/etc/hostname"));
    match name {
        Ok(name) if !name.trim().is_empty() => name.trim().to_owned(),
        _ => std::env::var("COMPUTERNAME")
            .or_else(|_| std::env::var("HOSTNAME"))
            .unwrap_or_else(|_| "localhost".to_owned()),
    }
}

/// The permission bits when others than the owner may read the file; `None` when they may not, or where files have no
/// such bits.
pub fn readable_by_others(metadata: &std::fs::Metadata) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let mode = metadata.mode() & 0o777;
        (mode & 0o044 != 0).then_some(mode)
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

/// What kind of thing that cannot be read as a file stands at a path; `None` for files and for the null device.
pub fn not_a_file(path: &Path, metadata: &std::fs::Metadata) -> Option<&'static str> {
    if metadata.is_file() {
        return None;
    }
    if metadata.is_dir() {
        return Some("folder");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return Some("pipe");
        }
        if kind.is_socket() {
            return Some("socket");
        }
    }
    if path == Path::new("/dev/null") { None } else { Some("device") }
}
