//! The processes of an MPI job over the provider, with the system's Open MPI: one that is killed, children,
//! ends without a farewell. Each job has namespaces of its own, so that all that is left is seen.

use std::path::Path;
use std::process::Command;

use doorbell_testing::skip::lacking;
use doorbell_testing::skipped;

use crate::pair::{text, variables};

/// Ends a job that hangs.
const GUARD: &str = "240";
/// Namespaces of processes, networks, mounts and users.
const OWN: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];
/// Runs `$@`, of which `$0` is the ranks' program, and prints its status and what there is after it.
const SCRIPT: &str = r#"
ip link set lo up && mount -t tmpfs none /dev/shm || exit 99
"$@"
echo "status: $?"
ls -A /dev/shm | sed 's/^/left: file /'
grep @ /proc/net/unix | sed 's/^/left: socket /'
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/exe")" = "$0" ] && echo "left: process $process"
done
true
"#;

/// Why no job can be run here.
fn lack() -> Option<String> {
    let programs = [
        ("mpirun.openmpi", "openmpi-bin"),
        ("mpicc.openmpi", "libopenmpi-dev"),
        ("unshare", "util-linux"),
        ("ip", "iproute2"),
    ];
    let lacks = programs
        .into_iter()
        .find_map(|(program, package)| lacking(program, package));
    let may = || namespaces().arg("true").output().unwrap().status.success();
    lacks.or_else(|| (!may()).then(|| "no namespaces may be made here".to_owned()))
}

fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args(OWN).args(["--net", "--mount"]);
    command
}

/// Compiles the ranks' program.
fn compiled(folder: &Path) -> std::path::PathBuf {
    let program = folder.join("ranks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi.c");
    let mut command = Command::new("mpicc.openmpi");
    command
        .args(["-std=gnu11", "-O1", "-o"])
        .arg(&program)
        .arg(source);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    program
}

/// Runs a job of three ranks; returns what was printed. `None` where that cannot be.
fn run(test: &str, what: &str, options: &[&str]) -> Option<String> {
    if let Some(reason) = lack() {
        skipped(test, &reason);
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path());
    let mut command = Command::new("timeout");
    let inner = namespaces();
    command
        .args(["--kill-after=5", GUARD])
        .arg(inner.get_program())
        .args(inner.get_args());
    command.args(["sh", "-c", SCRIPT]).arg(&program);
    command.args([
        "mpirun.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "3",
    ]);
    command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
    command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
    command.args(["--mca", "mtl_ofi_provider_include", "doorbell"]);
    command.args(options).arg(&program).arg(what);
    let output = variables(&mut command)
        .env("TMPDIR", folder.path())
        .env_remove("FI_PROVIDER")
        .output()
        .unwrap();
    let printed = text(&output);
    assert!(output.status.success(), "{}: {printed}", output.status);
    let left: Vec<&str> = printed
        .lines()
        .filter(|line| line.starts_with("left: "))
        .collect();
    assert!(left.is_empty(), "{left:#?}\n{printed}");
    Some(printed)
}

#[test]
fn a_killed_rank_is_an_error_for_those_who_need_it_and_leaves_nothing() {
    let test = "mpi::a_killed_rank_is_an_error_for_those_who_need_it_and_leaves_nothing";
    // Without this option the launcher ends the others at once.
    let Some(printed) = run(test, "killed", &["--enable-recovery"]) else {
        return;
    };
    for line in ["rank 0 goes on", "rank 2 goes on", "status: 0"] {
        assert!(printed.contains(line), "{line:?} in {printed}");
    }
}

#[test]
fn a_job_with_a_killed_rank_ends_and_leaves_nothing() {
    let test = "mpi::a_job_with_a_killed_rank_ends_and_leaves_nothing";
    if let Some(printed) = run(test, "killed", &[]) {
        // 128 and the number of the signal.
        assert!(printed.contains("status: 137"), "{printed}");
    }
}

#[test]
fn children_of_a_rank_end_in_every_way_and_the_rank_goes_on() {
    let test = "mpi::children_of_a_rank_end_in_every_way_and_the_rank_goes_on";
    let Some(printed) = run(test, "fork", &[]) else {
        return;
    };
    for line in ["rank 0 goes on", "rank 1 goes on", "rank 2 goes on", "status: 0"] {
        assert!(printed.contains(line), "{line:?} in {printed}");
    }
    // One line for the child that calls, in each rank.
    let refusals = printed.matches("opened before a fork").count();
    assert_eq!(refusals, 3, "{printed}");
}

#[test]
fn ranks_that_exit_without_mpi_finalize_leave_nothing() {
    let test = "mpi::ranks_that_exit_without_mpi_finalize_leave_nothing";
    for what in ["exit", "_exit"] {
        if run(test, what, &[]).is_none() {
            return;
        }
    }
}
