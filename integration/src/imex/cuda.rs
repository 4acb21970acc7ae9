//! A CUDA process that shares memory over the fabric: what a container does with its channel's device node.

use std::path::Path;

use tokio::net::UnixStream;

pub use super::fabric::Handle;

use super::fabric::Denied;
use super::os::Os;
use super::wire::{self, FromKernel, ToKernel};

/// A process with at most one channel for its life.
///
/// What it exported is gone once it is dropped, as with a real process. When the node's IMEX daemon ends, the kernel
/// disables every process that uses fabric memory: all calls fail from then on.
#[derive(Debug)]
pub struct Cuda {
    os: Os,
    channel: Option<u32>,
    kernel: Kernel,
}

#[derive(Debug)]
enum Kernel {
    NotAskedYet,
    Session(UnixStream),
    SessionEnded,
}

/// A CUDA error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CUDA error {code}: {message}")]
pub struct CudaError {
    /// 400 invalid handle, 800 not permitted, 801 not supported.
    pub code: u32,
    /// What it means here.
    pub message: String,
}

impl CudaError {
    fn new(denied: Denied, message: impl Into<String>) -> Self {
        Self { code: denied.code(), message: message.into() }
    }
}

impl From<Denied> for CudaError {
    fn from(denied: Denied) -> Self {
        // The text begins with the code.
        Self { code: denied.code(), message: denied.to_string().split_off("400 ".len()) }
    }
}

impl Cuda {
    /// Begins a process on the node whose `/` is `os`, with the channel whose device node it could open, as
    /// `(major, minor)`, or with `None`. A node of another major than that of this boot's channels is no channel.
    pub fn open(os: &Path, channel_node: impl Into<Option<(u32, u32)>>) -> Result<Self, CudaError> {
        let os = Os::at(os);
        let channel = match channel_node.into() {
            None => None,
            Some((major, minor)) => {
                let devices = std::fs::read_to_string(os.path("proc/devices")).unwrap_or_default();
                let known = devices.lines().find_map(|line| line.trim().strip_suffix(" nvidia-caps-imex-channels"));
                if known.and_then(|known| known.trim().parse().ok()) != Some(major) {
                    let known = known.unwrap_or("none");
                    let text =
                        format!("device {major}:{minor} is no IMEX channel, their major on this node is {known}");
                    return Err(CudaError::new(Denied::NotPermitted, text));
                }
                Some(minor)
            }
        };
        Ok(Self { os, channel, kernel: Kernel::NotAskedYet })
    }

    /// Exports memory to the IMEX domain.
    pub async fn export(&mut self) -> Result<Handle, CudaError> {
        match self.ask(&ToKernel::Export).await? {
            FromKernel::Exported(handle) => Ok(handle),
            FromKernel::Denied(denied) => Err(denied.into()),
            FromKernel::Done => Err(CudaError::new(Denied::NotSupported, "the kernel gave no handle")),
        }
    }

    /// Imports memory that a process, here or on another node, has exported.
    pub async fn import(&mut self, handle: &Handle) -> Result<(), CudaError> {
        self.done(&ToKernel::Import(*handle)).await
    }

    /// Whether imported memory is still there to be read.
    pub async fn holds(&mut self, handle: &Handle) -> Result<(), CudaError> {
        self.done(&ToKernel::Holds(*handle)).await
    }

    async fn done(&mut self, request: &ToKernel) -> Result<(), CudaError> {
        match self.ask(request).await? {
            FromKernel::Denied(denied) => Err(denied.into()),
            FromKernel::Done | FromKernel::Exported(_) => Ok(()),
        }
    }

    async fn ask(&mut self, request: &ToKernel) -> Result<FromKernel, CudaError> {
        let channel = self
            .channel
            .ok_or_else(|| CudaError::new(Denied::NotPermitted, "not permitted: the process has no IMEX channel"))?;
        if matches!(self.kernel, Kernel::NotAskedYet) {
            let mut kernel = UnixStream::connect(self.os.kernel_socket()).await.map_err(|_| Denied::NotSupported)?;
            match exchange(&mut kernel, &ToKernel::Subscribe { channel }).await {
                Ok(FromKernel::Done) => self.kernel = Kernel::Session(kernel),
                Ok(FromKernel::Denied(denied)) => return Err(denied.into()),
                Ok(FromKernel::Exported(_)) | Err(_) => return Err(Denied::NotSupported.into()),
            }
        }
        // Taken out while it is asked: if the caller gives up half-way the exchange cannot be gone on with.
        if let Kernel::Session(mut kernel) = std::mem::replace(&mut self.kernel, Kernel::SessionEnded)
            && let Ok(answer) = exchange(&mut kernel, request).await
        {
            self.kernel = Kernel::Session(kernel);
            return Ok(answer);
        }
        Err(CudaError::new(
            Denied::NotSupported,
            "the IMEX session ended under the process, which was disabled with it",
        ))
    }
}

async fn exchange(kernel: &mut UnixStream, request: &ToKernel) -> std::io::Result<FromKernel> {
    wire::send(kernel, request).await?;
    wire::receive(kernel).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_channel_or_session_there_is_no_sharing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let devices = "Character devices:\n505 nvidia-caps\n506 nvidia-caps-imex-channels\n";
        std::fs::write(folder.path().join("proc/devices"), devices).unwrap();

        let error = Cuda::open(folder.path(), None).unwrap().export().await.unwrap_err();
        assert_eq!(error.code, 800);
        assert_eq!(Cuda::open(folder.path(), (505, 1)).unwrap_err().code, 800);
        let error = Cuda::open(folder.path(), (506, 1)).unwrap().export().await.unwrap_err();
        assert_eq!((error.code, error.to_string().contains("no IMEX session")), (801, true));
    }
}
