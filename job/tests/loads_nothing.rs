//! A process that names no verbs rail, on a machine without RDMA devices, loads nothing of rdma-core.
//! In a program of its own: what another test loaded would be seen.

use doorbell_job::config::Config;
use doorbell_job::discover;
use doorbell_job::rails::open_all;

/// The files that are mapped into this process, as far as they are of rdma-core.
fn mapped() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(
        maps.contains("loads_nothing"),
        "the maps are those of this program"
    );
    let of_rdma = |line: &&str| {
        ["ibverbs", "rdmacm", "ibumad", "rdmav"]
            .iter()
            .any(|word| line.contains(word))
    };
    maps.lines().filter(of_rdma).map(str::to_owned).collect()
}

#[test]
fn a_process_that_names_no_verbs_rail_maps_nothing_of_the_library() {
    let devices = std::fs::read_dir("/sys/class/infiniband_verbs");
    if devices.into_iter().flatten().flatten().count() > 0 {
        return doorbell_testing::skipped(
            "a_process_that_names_no_verbs_rail_maps_nothing_of_the_library",
            "no RDMA device: this machine has one, so discovery loads the library",
        );
    }
    let mut config = Config::default();
    let found = discover(&config);
    let verbs = found.kinds.iter().find(|report| report.kind == "verbs").unwrap();
    assert!(verbs.candidates.is_empty(), "{verbs:?}");
    config.set("rails.list", "shm,udp:lo").unwrap();
    let (rails, _) = open_all(&config).unwrap();
    assert_eq!(rails.len(), 2);
    // Nor does a verbs rail that is named: there is no device to load a library for.
    config.set("rails.list", "verbs:rxe0:1:ud").unwrap();
    let refused = open_all(&config).err().unwrap().to_string();
    assert!(refused.contains("no RDMA device here"), "{refused}");
    assert_eq!(mapped(), Vec::<String>::new());
}
