//! `heddle fake imex-domain`: the folders of simulated nodes, so that daemons need nothing but `HEDDLE_FAKE_OS`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::os::Os;

/// The name that the certificates of `--tls` bear.
const TLS_NAME: &str = "fake.imex.heddle.dev";

/// A path of a unix socket must be shorter.
const SOCKET_PATH_MAX: usize = 108;

const USAGE: &str = "\
usage: imex-domain [--tls] <folder> <address>...
  Makes <folder>/0, <folder>/1, ... for nodes with these addresses; daemons in them form one IMEX domain.
  --tls   with an authority, and a certificate for each node";

/// Makes the folders.
pub fn domain_main(args: Vec<OsString>) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("imex-domain: {error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match options.make() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("imex-domain: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug)]
struct Options {
    folder: PathBuf,
    addresses: Vec<IpAddr>,
    tls: bool,
}

impl Options {
    fn parse(args: Vec<OsString>) -> Result<Self> {
        let (flags, mut rest): (Vec<_>, Vec<_>) =
            args.into_iter().skip(1).partition(|arg| arg.to_string_lossy().starts_with('-'));
        if let Some(flag) = flags.iter().find(|flag| *flag != "--tls") {
            bail!("unknown option {}", flag.display());
        }
        if rest.len() < 2 {
            bail!("a folder and at least one address are needed");
        }
        let addresses = rest.split_off(1);
        let address = |text: OsString| {
            let text = text.to_string_lossy();
            text.parse().with_context(|| format!("{text:?} is no address"))
        };
        let addresses = addresses.into_iter().map(address).collect::<Result<_>>()?;
        Ok(Self { folder: PathBuf::from(&rest[0]), addresses, tls: !flags.is_empty() })
    }

    fn make(&self) -> Result<()> {
        make_domain(&self.folder, &self.addresses, self.tls)
    }
}

/// Makes `folder` with a node's folder for each address; daemons in them form one IMEX domain.
///
/// # Errors
/// When `folder` is there already or cannot be written, or its path is too long for sockets.
pub fn make_domain(folder: &Path, addresses: &[IpAddr], tls: bool) -> Result<()> {
    std::fs::create_dir(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // The configuration names files by their full path.
    let folder = std::fs::canonicalize(folder)?;
    let authority = tls.then(Authority::new).transpose()?;
    let map: String = addresses.iter().map(|address| format!("{address}\n")).collect();
    for (id, address) in addresses.iter().enumerate() {
        let os = Os::at(folder.join(id.to_string()));
        let socket = os.path("run/imex.sock");
        if socket.as_os_str().len() >= SOCKET_PATH_MAX {
            bail!("{} is too long for a unix socket: use a folder nearer to /", socket.display());
        }
        let mut config = format!(
            "DAEMONIZE=0\nLOG_FILE_NAME=\nIMEX_CMD_ENABLED=1\nIMEX_CMD_PORT=50005\nIMEX_CMD_UNIX_DOMAIN_PATH={}\n",
            socket.display()
        );
        if let Some(authority) = &authority {
            config += &authority.admit(&os.path("tls"))?;
        }
        // Followed while a daemon runs, if it is there at its start.
        std::fs::create_dir_all(os.path("imex"))?;
        std::fs::create_dir_all(os.path("run"))?;
        write(&os.path("net/addresses"), &format!("{address}\n"))?;
        write(&os.path("proc/devices"), "Character devices:\n234 nvidia-caps-imex-channels\n")?;
        write(&os.path("etc/hosts"), "")?;
        write(&os.path("etc/nvidia-imex/nodes_config.cfg"), &map)?;
        write(&os.path("etc/nvidia-imex/config.cfg"), &config)?;
    }
    Ok(())
}

/// Signs the certificates of one domain, and is forgotten then.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "authority of a fake IMEX domain");
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Gives a node a key and a certificate, and says what its configuration file needs for them.
    fn admit(&self, folder: &Path) -> Result<String> {
        let mut params = CertificateParams::new([TLS_NAME.to_owned()])?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        write(&folder.join("tls.key"), &key.serialize_pem())?;
        write(&folder.join("tls.crt"), &params.signed_by(&key, &self.0)?.pem())?;
        write(&folder.join("ca.crt"), &self.0.pem())?;
        let mut config = format!(
            "IMEX_ENABLE_AUTH_ENCRYPTION=1\nIMEX_AUTH_ENCRYPTION_MODE=SSL_TLS\nIMEX_AUTH_SOURCE=FILE\n\
             IMEX_SECURITY_TARGET_OVERRIDE={TLS_NAME}\n"
        );
        for (key, file) in [("KEY", "tls.key"), ("CERT", "tls.crt"), ("CERT_AUTH", "ca.crt")] {
            let path = folder.join(file);
            config += &format!("IMEX_SERVER_{key}={0}\nIMEX_CLIENT_{key}={0}\n", path.display());
        }
        Ok(config)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options> {
        Options::parse(std::iter::once("imex-domain").chain(args.iter().copied()).map(OsString::from).collect())
    }

    #[test]
    fn arguments() {
        let good = options(&["--tls", "rack", "127.0.0.2", "::1"]).unwrap();
        assert_eq!((good.folder.as_path(), good.addresses.len(), good.tls), (Path::new("rack"), 2, true));
        for bad in [&[][..], &["rack"], &["rack", "node-0"], &["--ssl", "rack", "::1"]] {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_there_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let error = options(&[path, "127.0.0.2"]).unwrap().make().unwrap_err();
        assert!(error.to_string().contains(path), "{error:#}");
        let long = folder.path().join("x".repeat(SOCKET_PATH_MAX));
        let error = options(&[long.to_str().unwrap(), "127.0.0.2"]).unwrap().make().unwrap_err();
        assert!(error.to_string().contains("too long for a unix socket"), "{error:#}");
    }
}
