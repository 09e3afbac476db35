//! Rail sets: which are listed, and that a domain has those rails which its name has.

use std::ffi::{CStr, CString};
use std::fs;
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use doorbell_testing::netns::Lab;
use doorbell_testing::skip::lacking;
use doorbell_testing::skipped;
use libfabric_sys::*;

use crate::alone::{run, run_with, text, with_provider};
use crate::opened::{Opened, hints, open, try_open};
use crate::{get, set};

/// What a call of fi_getinfo may add to the start of a process.
const MOST: Duration = Duration::from_millis(5);

fn of_domain(library: &Library, name: &CStr) -> InfoList {
    let mut hints = hints(library);
    set!(hints, domain_attr.name = crate::opened::text(name));
    hints
}

fn ask(library: &Library, hints: Option<&InfoList>) -> Result<Vec<String>, i32> {
    let found = library.getinfo(library.level(), None, None, 0, hints);
    let found = found.map_err(|error| error.number)?;
    Ok(found.names().into_iter().map(|names| names.domain).collect())
}

/// How many sockets of UDP this process has.
fn udp_sockets() -> usize {
    let lists = ["/proc/net/udp", "/proc/net/udp6"].map(|list| fs::read_to_string(list).unwrap_or_default());
    let lists = lists.concat();
    let listed: Vec<&str> = lists
        .lines()
        .filter_map(|line| line.split_whitespace().nth(9))
        .collect();
    let own = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own = own.filter_map(|entry| fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned));
    own.filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .filter(|number| listed.contains(&number.as_str()))
        .count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn each_interface_is_listed_behind_shm_within_the_time() {
    let test = "rail_sets::each_interface_is_listed_behind_shm_within_the_time";
    run(test, |library| {
        let names = ask(&library, None).unwrap();
        assert_eq!(names[0], "shm");
        assert!(names.contains(&"shm+udp:lo".to_owned()), "{names:?}");
        assert!(names[1..].iter().all(|name| name.starts_with("shm+udp:")));
        let (before, sockets) = (descriptors(), udp_sockets());
        let quickest = (0..20).map(|_| {
            let begun = Instant::now();
            ask(&library, None).unwrap();
            begun.elapsed()
        });
        let quickest = quickest.min().unwrap();
        println!("fi_getinfo with {} entries: {quickest:?}", names.len());
        assert!(quickest < MOST, "{quickest:?}");
        assert_eq!((descriptors(), udp_sockets()), (before, sockets));
    });
}

#[test]
fn the_first_entry_is_unlike_all_others() {
    // Open MPI deals out those that are alike in these fields.
    run("rail_sets::the_first_entry_is_unlike_all_others", |library| {
        let info = library.getinfo(library.level(), None, None, 0, None).unwrap();
        let longest = |entry: *mut fi_info| {
            // SAFETY: an entry of the list has all its attributes.
            let attributes = unsafe { (*entry).ep_attr };
            // SAFETY: as above.
            unsafe { (*attributes).max_msg_size }
        };
        let sizes: Vec<usize> = info.iter().map(longest).collect();
        assert!(
            sizes.len() > 1 && sizes[1..].iter().all(|size| *size != sizes[0]),
            "{sizes:?}"
        );
    });
}

#[test]
fn a_domain_that_is_chosen_by_its_name_has_exactly_its_rails() {
    let test = "rail_sets::a_domain_that_is_chosen_by_its_name_has_exactly_its_rails";
    run(test, |library| {
        for (name, sockets) in [
            (c"shm", 0),
            (c"shm+udp:lo", 2),
            (c"udp:lo", 2),
            (c"udp:127.0.0.1+shm", 2),
        ] {
            let before = udp_sockets();
            let opened = Opened::by(library, &of_domain(&library, name));
            assert_eq!(opened.info.names().len(), 1);
            assert_eq!(
                CString::new(opened.info.names()[0].domain.clone()).unwrap(),
                *name
            );
            assert_eq!(udp_sockets() - before, sockets, "{name:?}");
            // Hints that have the open domain are answered with its rails.
            let mut more = hints(&library);
            set!(more, domain_attr.domain = opened.domain.0);
            assert_eq!(
                ask(&library, Some(&more)),
                Ok(vec![name.to_str().unwrap().to_owned()])
            );
            set!(more, domain_attr.name = crate::opened::text(c"udp:lo+shm"));
            assert_eq!(ask(&library, Some(&more)), Err(FI_ENODATA));
        }
    });
}

#[test]
fn an_entry_of_the_list_opens_its_domain_also_when_it_was_copied_and_the_list_is_gone() {
    let test =
        "rail_sets::an_entry_of_the_list_opens_its_domain_also_when_it_was_copied_and_the_list_is_gone";
    run(test, |library| {
        let list = library.getinfo(library.level(), None, None, 0, None).unwrap();
        let at = list
            .names()
            .iter()
            .position(|names| names.domain == "shm+udp:lo")
            .unwrap();
        let entry = list.iter().nth(at).unwrap();
        // SAFETY: an entry of the list, which lives.
        let copy = unsafe { list.copy_of(entry) }.unwrap();
        drop(list);
        let (attributes, null) = (get!(copy, fabric_attr), ptr::null_mut());
        // SAFETY: the attributes are the library's.
        let fabric = open("fi_fabric", |to| unsafe { library.fabric(attributes, to, null) });
        let (entry, before) = (copy.as_ptr().cast_mut(), udp_sockets());
        // SAFETY: the fabric is open, and the entry is of its provider.
        let domain = open::<fid_domain>("fi_domain", |to| unsafe { fi_domain(fabric.0, entry, to, null) });
        assert_eq!(udp_sockets() - before, 2);
        // A copy as hints names the domain.
        assert_eq!(ask(&library, Some(&copy)), Ok(vec!["shm+udp:lo".to_owned()]));
        drop(copy);
        assert_eq!(domain.close(), 0);
    });
}

#[test]
fn a_name_that_cannot_be_used_is_no_data_and_one_warning() {
    let test = "rail_sets::a_name_that_cannot_be_used_is_no_data_and_one_warning";
    let printed = run_with(test, &[("FI_LOG_LEVEL", "warn")], |library| {
        for name in [c"shm+udp:nope", c"shm+smh:x", c"shm+ofi:tcp", c"udp:lo+udp:lo"] {
            assert_eq!(
                ask(&library, Some(&of_domain(&library, name))),
                Err(FI_ENODATA),
                "{name:?}"
            );
        }
        // Another provider's.
        assert_eq!(
            ask(&library, Some(&of_domain(&library, c"eth0"))),
            Err(FI_ENODATA)
        );
    });
    let Some(printed) = printed else { return };
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("domain_attr.name"))
        .collect();
    assert_eq!(lines.len(), 4, "{printed}");
    for (line, reason) in lines
        .iter()
        .zip(["no such rail", "smh", "under itself", "stands twice"])
    {
        assert!(
            line.contains(reason) && line.contains("names of domains are shm, shm+udp:"),
            "{line}"
        );
    }
}

#[test]
fn rails_that_a_setting_names_are_the_only_set() {
    let test = "rail_sets::rails_that_a_setting_names_are_the_only_set";
    let variables = [
        ("FI_DOORBELL_RAILS", "udp:lo,shm"),
        ("FI_DOORBELL_NETWORK", "routes"),
    ];
    run_with(test, &variables, |library| {
        let only = || Ok(vec!["udp:lo+shm".to_owned()]);
        assert_eq!(ask(&library, None), only());
        assert_eq!(ask(&library, Some(&of_domain(&library, c"udp:lo+shm"))), only());
        for other in [c"shm", c"shm+udp:lo"] {
            assert_eq!(ask(&library, Some(&of_domain(&library, other))), Err(FI_ENODATA));
        }
        // Nor is such a domain opened.
        let opened = Opened::any(library);
        let mut entry = hints(&library);
        set!(entry, domain_attr.name = crate::opened::text(c"shm"));
        let (entry, null) = (entry.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the fabric is open, and the entry has all its attributes.
        let refused = try_open::<fid_domain>(|to| unsafe { fi_domain(opened.fabric.0, entry, to, null) });
        assert_eq!(refused.unwrap_err(), -FI_EINVAL);
    });
}

#[test]
fn a_network_that_routes_lead_to_is_first_where_the_setting_has_it() {
    let test = "rail_sets::a_network_that_routes_lead_to_is_first_where_the_setting_has_it";
    if let Some(reason) = lacking("fi_info", "libfabric-bin") {
        return skipped(test, &reason);
    }
    let Some(lab) = Lab::pair(test, 1500) else { return };
    // An interface that can be used, and that no route leads to.
    lab.ip(0, "link add d0 type veth peer name d1");
    lab.ip(0, "link set d1 up");
    lab.ip(0, "addr add 10.78.0.1/32 dev d0");
    lab.ip(0, "link set d0 up");
    let list = |network: &str| -> Vec<String> {
        let mut command = Command::new("fi_info");
        with_provider(command.args(["-p", "doorbell"])).env("FI_DOORBELL_NETWORK", network);
        let output = lab.inside(0, || command.output().unwrap());
        let lines = text(&output, "fi_info");
        let domains = lines
            .lines()
            .filter_map(|line| line.trim().strip_prefix("domain: "));
        domains.map(str::to_owned).collect()
    };
    let off = list("off");
    let others = ["shm+udp:lo", "shm+udp:v0", "shm+udp:d0"];
    assert_eq!((off.len(), off[0].as_str()), (4, "shm"), "{off:?}");
    assert!(
        others.iter().all(|other| off.iter().any(|name| name == other)),
        "{off:?}"
    );
    let routes = list("routes");
    assert_eq!(
        (routes.len(), &routes[..2]),
        (4, &["shm+udp:v0".to_owned(), "shm".to_owned()][..])
    );
}
