//! Fetching packages with apt's ordinary client, without installing anything: all its folders are the lab's
//! own.
//!
//! Signatures are checked as everywhere: with the keyring of Debian's that this machine has, or with the keys
//! that its apt trusts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::host::Host;
use super::programs::Programs;
use super::stop::Stop;
use crate::error::Error;

/// The keyring with Debian's keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What reading the lists of a few suites may take, and fetching the packages of one image.
const LISTS: Duration = Duration::from_secs(90);
const PACKAGES: Duration = Duration::from_secs(150);
/// The words by which apt reports that it did not reach its mirror.
const UNREACHED: [&str; 5] = [
    "Failed to fetch",
    "Could not resolve",
    "Temporary failure",
    "Unable to connect",
    "Some index files failed to download",
];

/// An apt that knows only the suites that it was made for.
pub(super) struct Apt<'a> {
    programs: &'a Programs,
    folder: PathBuf,
    configuration: PathBuf,
}

impl<'a> Apt<'a> {
    /// Makes the folders and the configuration, and reads the suites' lists of packages. `shared` is for all
    /// of them.
    pub(super) fn new(
        programs: &'a Programs,
        host: &Host,
        shared: &Path,
        folder: &Path,
        suites: &[&str],
    ) -> Result<Self, Stop> {
        let lists = shared.join("lists");
        for made in [
            lists.join("partial"),
            folder.join("sources"),
            folder.join("none"),
            folder.join("archives/partial"),
        ] {
            fs::create_dir_all(&made).map_err(Error::file("create", &made))?;
        }
        let apt = Self {
            programs,
            folder: folder.to_owned(),
            configuration: folder.join("apt.conf"),
        };
        apt.write("status", "")?;
        apt.write(
            "sources/debian.sources",
            &sources(&host.mirror, suites, Path::new(KEYS).is_file()),
        )?;
        apt.write(
            "apt.conf",
            &(host.fetching.clone() + &configuration(folder, &lists)),
        )?;
        let doing = format!("reading what packages {} has", suites.join(", "));
        apt.must("apt-get", &doing, &["-qq", "update"], LISTS)?;
        Ok(apt)
    }

    /// Fetches packages and everything that they need, as if nothing were installed, preferring the suite
    /// `from`.
    pub(super) fn fetch_with_needs(&self, from: &str, packages: &[&str]) -> Result<Vec<PathBuf>, Stop> {
        let mut words = vec!["-qq", "-y", "--download-only", "-t", from, "install"];
        words.extend(packages);
        self.must(
            "apt-get",
            &format!("fetching {}", packages.join(", ")),
            &words,
            PACKAGES,
        )?;
        self.fetched(&self.folder.join("archives"))
    }

    /// Fetches just these packages.
    pub(super) fn fetch(&self, packages: &[String]) -> Result<Vec<PathBuf>, Stop> {
        let mut words = vec!["-qq", "download"];
        words.extend(packages.iter().map(String::as_str));
        self.must(
            "apt-get",
            &format!("fetching {}", packages.join(", ")),
            &words,
            PACKAGES,
        )?;
        self.fetched(&self.folder.join("archives"))
    }

    /// Runs `apt-cache` and returns its output.
    pub(super) fn cache(&self, words: &[&str]) -> Result<String, Stop> {
        self.must("apt-cache", "looking for packages", words, LISTS)
    }

    fn must(&self, program: &str, doing: &str, words: &[&str], limit: Duration) -> Result<String, Stop> {
        let mut command = Command::new(program);
        command
            .args(words)
            .env("APT_CONFIG", &self.configuration)
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .current_dir(self.folder.join("archives"));
        let said = self.programs.run("apt", doing, &mut command, limit)?;
        match said.code {
            Some(0) => Ok(said.text),
            _ => Err(judge(doing, &said.text, &said.how(limit), said.timed_out)),
        }
    }

    fn fetched(&self, folder: &Path) -> Result<Vec<PathBuf>, Stop> {
        let listed = fs::read_dir(folder).map_err(Error::file("list", folder))?;
        let files = listed.flatten().map(|found| found.path());
        let mut files: Vec<_> = files
            .filter(|file| file.extension().is_some_and(|ending| ending == "deb"))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(Stop::failed(format!(
                "apt-get fetched no package into {}",
                folder.display()
            )));
        }
        Ok(files)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(Error::file("write", &path))
    }
}

/// Decides whether the mirror was not reached, or apt had another reason.
fn judge(doing: &str, text: &str, how: &str, timed_out: bool) -> Stop {
    let line = |words: &[&str]| {
        let mut lines = text.lines();
        lines.find(|line| words.iter().any(|word| line.contains(word)))
    };
    if let Some(line) = line(&["NO_PUBKEY", "is not signed"]) {
        let reason =
            format!("a key of Debian's is missing here ({line}); a newer debian-archive-keyring has it");
        return Stop::Unable(reason);
    }
    match line(&UNREACHED) {
        Some(line) => Stop::Unable(format!(
            "the mirror of this machine's apt was not reached: {line}"
        )),
        None if timed_out => Stop::Unable(format!(
            "the mirror of this machine's apt is too slow: {doing}: apt {how}"
        )),
        None => Stop::failed(format!("{doing}: apt {how}")),
    }
}

/// Returns the sources, in the format of deb822.
fn sources(mirror: &str, suites: &[&str], has_keys: bool) -> String {
    let keys = if has_keys {
        format!("Signed-By: {KEYS}\n")
    } else {
        String::new()
    };
    format!(
        "Types: deb\nURIs: {mirror}\nSuites: {}\nComponents: main\n{keys}",
        suites.join(" ")
    )
}

/// Returns apt's configuration: the folders, and that nothing of this machine's own state or habits counts.
fn configuration(folder: &Path, lists: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let settings = [
        ("Dir::Etc::main", at("none/apt.conf")),
        ("Dir::Etc::parts", at("none")),
        ("Dir::Etc::sourcelist", at("none/sources.list")),
        ("Dir::Etc::sourceparts", at("sources")),
        ("Dir::Etc::preferences", at("none/preferences")),
        ("Dir::Etc::preferencesparts", at("none")),
        ("Dir::State::lists", lists.display().to_string()),
        ("Dir::State::status", at("status")),
        ("Dir::Cache", folder.display().to_string()),
        ("Dir::Cache::archives", at("archives")),
        ("APT::Architecture", "amd64".to_owned()),
        ("APT::Architectures", "amd64".to_owned()),
        ("APT::Install-Recommends", "false".to_owned()),
        // The lists of the other images' suites lie in the same folder.
        ("APT::Get::List-Cleanup", "false".to_owned()),
        // Its own user cannot write into our folders.
        ("APT::Sandbox::User", "root".to_owned()),
        // We need not be root.
        ("Debug::NoLocking", "true".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::http::Timeout", "20".to_owned()),
        ("Acquire::https::Timeout", "20".to_owned()),
        ("Acquire::Retries", "2".to_owned()),
    ];
    settings.iter().fold(String::new(), |text, (name, value)| {
        text + &format!("{name} \"{value}\";\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_name_the_mirror_the_suites_and_the_keys() {
        let text = sources("http://m.example/debian", &["a", "a-backports"], true);
        assert!(
            text.contains("URIs: http://m.example/debian\nSuites: a a-backports\n"),
            "{text}"
        );
        assert!(text.contains("Signed-By: /usr/share/keyrings/"), "{text}");
        assert!(!sources("x", &["a"], false).contains("Signed-By"));
        assert!(
            !text.to_lowercase().contains("trusted"),
            "signatures are always checked"
        );
    }

    #[test]
    fn no_folder_of_this_machines_apt_is_used() {
        let text = configuration(Path::new("/lab/apt"), Path::new("/lab/lists"));
        for line in text.lines().filter(|line| line.starts_with("Dir")) {
            assert!(line.contains("\"/lab/") && line.ends_with("\";"), "{line}");
        }
    }

    #[test]
    fn a_mirror_out_of_reach_is_a_reason_and_a_missing_package_is_an_error() {
        let unable = |text: &str, slow| match judge("fetching x", text, "ended with 100", slow) {
            Stop::Unable(reason) => Some(reason),
            Stop::Failed(_) => None,
        };
        let text = "W: Failed to fetch http://m.example/x  Could not resolve 'm.example'\nE: more\n";
        assert!(unable(text, false).unwrap().contains("Could not resolve"));
        let text = "W: GPG error: NO_PUBKEY 123\nE: Failed to fetch x\n";
        assert!(unable(text, false).unwrap().contains("debian-archive-keyring"));
        assert!(unable("", true).is_some());
        assert!(unable("E: Unable to locate package nosuch\n", false).is_none());
    }
}
