//! libfabric: its own program, or those of fabtests, and the providers that it has. A home may bring the
//! library alone, as the wheels of MPIs do: then the PATH's program runs over it.

use doorbell_tools::process::{Runner, Stop};

use super::Peer;
use super::homes::{Home, Where};
use super::programs::{number, said};
use crate::compare_peers::args::Family;

/// The program that every libfabric brings, and those of fabtests, which measure rates, too.
pub(crate) const PINGPONG: &str = "fi_pingpong";
pub(crate) const FABTESTS: [&str; 2] = ["fi_rdm_tagged_pingpong", "fi_rdm_tagged_bw"];

/// Looks for a libfabric.
pub(super) fn find(runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
    let mut peer = Peer::new(Family::Libfabric, "libfabric", at);
    let [tagged, rates] = FABTESTS.map(|name| at.program(name));
    let brought = at.home().is_some_and(Home::has_libfabric);
    let other = || Where::Path.program(PINGPONG).filter(|_| brought);
    peer.path = tagged
        .filter(|_| rates.is_some())
        .or_else(|| at.program(PINGPONG))
        .or_else(other);
    if peer.path.is_none() {
        peer.missing = Some(format!(
            "{PINGPONG} is not {}: apt-get install libfabric-bin",
            at.words()
        ));
        return Ok(Some(peer).filter(|_| at.home().is_none()));
    }
    // The one of the PATH, too, reports on the libraries of a home.
    let info = at.program("fi_info").or_else(|| Where::Path.program("fi_info"));
    if let Some(info) = info {
        let text = said(runner, at, &info, &["--version"])?.unwrap_or_default();
        peer.version = library(&text).and_then(number).or_else(|| number(&text));
        let text = said(runner, at, &info, &["-t", "FI_EP_RDM"])?.unwrap_or_default();
        peer.carriers = providers(&text);
    }
    Ok(Some(peer))
}

/// The line of the library, whose version need not be the program's.
fn library(text: &str) -> Option<&str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.trim().strip_prefix("libfabric:"))
}

/// The providers that `fi_info` lists, each once.
fn providers(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("provider:"))
    {
        let name = name.trim().to_owned();
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_those_that_fi_info_lists() {
        // As libfabric 2.5.1 printed it, but for the lines between.
        let text = "provider: tcp;ofi_rxm\n    fabric: 127.0.0.0/8\n    type: FI_EP_RDM\nprovider: shm\nprovider: sm2\n\
                    provider: tcp\nprovider: shm\n";
        assert_eq!(providers(text), ["tcp;ofi_rxm", "shm", "sm2", "tcp"]);
        assert!(providers("fi_getinfo: -61 (No data available)\n").is_empty());
    }

    #[test]
    fn the_version_is_the_library_s() {
        let text = "fi_info: 1.17.0\nlibfabric: 2.5.1\nlibfabric api: 2.5\n";
        assert_eq!(library(text).and_then(number).as_deref(), Some("2.5.1"));
    }
}
