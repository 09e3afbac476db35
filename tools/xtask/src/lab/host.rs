//! What this machine must have for a lab, and where it gets Debian's packages from: the mirror that its own
//! apt uses.

use std::path::Path;

use super::programs::Programs;
use super::stop::Stop;

/// The suite of the guests where this machine's own is not Debian's.
const USUAL: &str = "bookworm";

/// What was found out about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    /// The mirror from which its apt gets Debian.
    pub(super) mirror: String,
    /// The suite whose C library its programs are built against, or the usual one.
    pub(super) suite: String,
    /// How its apt fetches: proxies, limits, as lines of a configuration.
    pub(super) fetching: String,
}

impl Host {
    /// Reads the configuration of this machine's apt.
    pub(super) fn read(programs: &Programs) -> Result<Self, Stop> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err(Stop::unable(
                "the lab's machines are x86-64 under Linux, and this one is not",
            ));
        }
        for program in ["apt-get", "apt-cache", "apt-config", "dpkg"] {
            if !is_on_path(program) {
                let reason = format!("{program} is not here: the lab is made of Debian's packages");
                return Err(Stop::Unable(reason));
            }
        }
        let sites = programs.output_of(
            "apt-get",
            &["indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        )?;
        let mirror = mirror(&sites)
            .ok_or_else(|| Stop::unable("apt of this machine has no mirror of Debian among its sources"))?;
        let settings = programs.output_of("apt-config", &["dump"])?;
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        Ok(Self {
            mirror: mirror.to_owned(),
            suite: suite(&release).unwrap_or(USUAL).to_owned(),
            fetching: fetching(&settings),
        })
    }
}

/// Returns the first mirror of Debian itself.
fn mirror(sites: &str) -> Option<&str> {
    let sites = sites.lines().map(|site| site.trim().trim_end_matches('/'));
    let mut debian = sites.filter(|site| site.ends_with("/debian"));
    debian.next()
}

/// Returns the suite of a release of Debian.
fn suite(release: &str) -> Option<&str> {
    let value = |name: &str| {
        let mut lines = release.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.trim_matches('"')))
    };
    value("ID").filter(|id| *id == "debian")?;
    value("VERSION_CODENAME")
}

/// Returns the lines of a configuration that set how to fetch.
fn fetching(settings: &str) -> String {
    let lines = settings.lines().filter(|line| line.starts_with("Acquire::"));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .any(|folder| !folder.is_empty() && Path::new(folder).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_debians_and_no_other_suppliers() {
        let sites = "https://packages.example/apt\nhttp://mirror.example/debian-security\nhttp://mirror.example/debian/\n";
        assert_eq!(mirror(sites), Some("http://mirror.example/debian"));
        assert_eq!(mirror("http://mirror.example/ubuntu\n"), None);
        assert_eq!(mirror(""), None);
    }

    #[test]
    fn the_suite_is_known_where_this_is_debian() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(suite(debian), Some("bookworm"));
        assert_eq!(suite("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(suite("ID=debian\n"), None);
    }

    #[test]
    fn only_what_concerns_fetching_is_taken_over() {
        let settings =
            "APT::Update::Post-Invoke:: \"rm -f x\";\nAcquire::http::Proxy \"http://p:3128\";\nDir \"/\";\n";
        assert_eq!(fetching(settings), "Acquire::http::Proxy \"http://p:3128\";\n");
    }
}
