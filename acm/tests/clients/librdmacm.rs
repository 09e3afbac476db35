//! `rdma_getaddrinfo` of the machine's own librdmacm, which queries the service before a program connects.
//!
//! Without an InfiniBand device it would send no query: `shim/verbs.c` is one, as far as it looks.
//!
//! reference: acm, section 2 (which socket it takes), section 5 (its query), section 12.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use doorbell_acm::address::Address;
use doorbell_acm::query::Question;
use doorbell_acm::serve::{Reply, Settings};

use crate::common::{Running, settings, table, v4, with_tcp};
use crate::original::{may_mount, run};
use doorbell_testing::run_folder::with_run;
use doorbell_testing::skip::{is_installed, skipped};

/// The programs of `shim/`, and a service to query.
struct Lab {
    folder: tempfile::TempDir,
    shim: PathBuf,
    lookup: PathBuf,
}

impl Lab {
    /// Builds them, unless that cannot be done here.
    fn new(test: &str) -> Option<Self> {
        let made = Self::make();
        made.map_err(|reason| skipped(test, &reason)).ok()
    }

    fn make() -> Result<Self, String> {
        if !is_installed("cc") {
            return Err("package gcc: cc is not installed".to_owned());
        }
        let folder = tempfile::tempdir().unwrap();
        may_mount(folder.path())?;
        let built = folder.path().join("built");
        fs::create_dir(&built).unwrap();
        let lab = Self {
            shim: built.join("verbs.so"),
            lookup: built.join("lookup"),
            folder,
        };
        compile("verbs.c", &lab.shim, &["-shared", "-fPIC"]);
        compile("lookup.c", &lab.lookup, &["-ldl"]);
        match run(lab.command(&["127.0.0.1"])) {
            (3, text) => Err(format!("package rdmacm-utils: no librdmacm: {}", text.trim())),
            _ => Ok(lab),
        }
    }

    fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = with_run(&[], self.folder.path(), "env");
        let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
        preload.push(&self.shim);
        command.arg(preload).arg(&self.lookup).args(arguments);
        command
    }

    /// Returns what a program prints, and the queries that the service got.
    fn look_up(&self, settings: &Settings, arguments: &[&str]) -> (i32, String, Vec<Question>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let backend = move |question: Question, reply: Reply| {
            reply.send(&table(&question));
            heard.lock().unwrap().push(question);
        };
        let running = Running::start(settings, backend);
        let (code, text) = run(self.command(arguments));
        drop(running);
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        (code, text, asked)
    }
}

fn compile(source: &str, to: &Path, options: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/shim")
        .join(source);
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(to);
    command.arg(source).args(options);
    let (code, text) = run(command);
    assert_eq!(code, 0, "{text}");
}

fn resolve(source: Option<Address>, destination: Address, no_delay: bool) -> Question {
    Question::Resolve {
        source,
        destination,
        no_delay,
    }
}

/// A route as it is shown, by the number of the host that it leads to.
fn route(last: u8, source: &str, destination: &str) -> String {
    format!(
        "route length 72\nroute flags 0x2b\nroute dgid fe80::{last:x}\nroute dlid {last}\nsource {source}\n\
         destination {destination}\n"
    )
}

#[test]
fn rdma_getaddrinfo_gets_its_route_and_source_over_unix_and_tcp() {
    let test = "rdma_getaddrinfo_gets_its_route_and_source_over_unix_and_tcp";
    let Some(lab) = Lab::new(test) else { return };
    let folder = lab.folder.path();
    let tcp_only = Settings {
        unix: false,
        ..with_tcp(folder)
    };
    for own in [settings(folder), with_tcp(folder), tcp_only] {
        let (code, text, asked) = lab.look_up(&own, &["10.0.0.7"]);
        assert_eq!((code, text), (0, route(7, "10.0.0.1", "10.0.0.7")));
        assert_eq!(asked, [resolve(None, v4(7), false)]);
    }
}

#[test]
fn rdma_getaddrinfo_asks_with_a_source_and_without_delay() {
    let Some(lab) = Lab::new("rdma_getaddrinfo_asks_with_a_source_and_without_delay") else {
        return;
    };
    let own = settings(lab.folder.path());
    let (code, text, asked) = lab.look_up(&own, &["10.0.0.7", "10.0.0.1"]);
    assert_eq!((code, text), (0, route(7, "10.0.0.1", "10.0.0.7")));
    assert_eq!(asked, [resolve(Some(v4(1)), v4(7), false)]);
    // RAI_NUMERICHOST, and RAI_NOROUTE: only what is known.
    for flags in ["2", "4"] {
        let (_, _, asked) = lab.look_up(&own, &["10.0.0.7", "-", flags]);
        assert_eq!(asked, [resolve(None, v4(7), true)], "flags {flags}");
    }
    let v6 = Address::V6("fd00::9".parse().unwrap());
    let (code, text, asked) = lab.look_up(&own, &["fd00::9"]);
    assert_eq!((code, text), (0, route(9, "fd00::1", "fd00::9")));
    assert_eq!(asked, [resolve(None, v6, false)]);
}

#[test]
fn rdma_getaddrinfo_goes_on_without_a_route_where_there_is_none() {
    let test = "rdma_getaddrinfo_goes_on_without_a_route_where_there_is_none";
    let Some(lab) = Lab::new(test) else { return };
    let without = |destination: &str| format!("route length 0\nsource none\ndestination {destination}\n");
    let own = settings(lab.folder.path());
    let (code, text, asked) = lab.look_up(&own, &["10.0.0.206"]);
    assert_eq!((code, text), (0, without("10.0.0.206")), "refused");
    assert_eq!(asked.len(), 1);
    let private = Settings {
        librdmacm: false,
        ..own
    };
    let (code, text, asked) = lab.look_up(&private, &["10.0.0.7"]);
    assert_eq!((code, text), (0, without("10.0.0.7")), "not served");
    assert_eq!(asked, []);
}
