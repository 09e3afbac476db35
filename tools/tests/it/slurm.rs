//! doorbell under a real `srun`: a cluster of one node, this machine, with daemons of its own in a folder of
//! its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::launchers::{Launcher, ends_with_a_killed_rank, gathers, measures, on_path, text};
use crate::spawn::starts_no_more;
use doorbell_testing::skipped;

/// Until the node is there.
const UP: Duration = Duration::from_secs(60);

/// The daemons, ended with it.
struct Cluster {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let pid = Pid::from_raw(i32::try_from(daemon.id()).unwrap_or(0));
            if let Some(pid) = pid {
                let _ = kill_process(pid, Signal::TERM);
            }
            let until = Instant::now() + Duration::from_secs(10);
            while matches!(daemon.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Why there can be no cluster here.
fn lacking() -> Option<String> {
    let programs = [
        ("slurmctld", "slurmctld"),
        ("slurmd", "slurmd"),
        ("srun", "slurm-client"),
        ("munged", "munge"),
    ];
    if let Some((program, package)) = programs.into_iter().find(|(program, _)| !found(program)) {
        return Some(format!("package {package}: {program} not found"));
    }
    let root = rustix::process::geteuid().is_root();
    (!root).then(|| "slurmd runs as root only".to_owned())
}

fn found(program: &str) -> bool {
    on_path(program) || Path::new("/usr/sbin").join(program).is_file()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn configuration(folder: &str, host: &str) -> String {
    let (controller, node) = (free_port(), free_port());
    format!(
        "ClusterName=doorbell\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
         SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge.sock\n\
         CredType=cred/munge\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
         SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSchedulerType=sched/builtin\n\
         SelectType=select/linear\nMpiDefault=none\nReturnToService=2\nSlurmdParameters=config_overrides\n\
         MailProg=/bin/true\nKillWait=2\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
         PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    )
}

fn start(program: &str, arguments: &[&str], folder: &Path) -> Result<Child, String> {
    let log =
        std::fs::File::create(folder.join(format!("{program}.log"))).map_err(|error| error.to_string())?;
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new(program)
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin"))
        .env("SLURM_CONF", folder.join("slurm.conf"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|error| error.to_string())?)
        .stderr(log)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))
}

impl Cluster {
    fn up() -> Result<Self, String> {
        let folder = tempfile::Builder::new()
            .prefix("doorbell-slurm-")
            .tempdir()
            .map_err(|error| error.to_string())?;
        let name = folder.path().display().to_string();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host = host.split('.').next().unwrap_or("localhost").to_owned();
        let write = |file: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(file), bytes).map_err(|error| error.to_string())
        };
        write("slurm.conf", configuration(&name, &host).as_bytes())?;
        write(
            "munge.key",
            &std::array::from_fn::<u8, 128, _>(|at| (at * 37) as u8),
        )?;
        for inner in ["state", "spool"] {
            std::fs::create_dir(folder.path().join(inner)).map_err(|error| error.to_string())?;
        }
        // Munge and Slurm look at who may write where their files are.
        for (file, mode) in [("", 0o755), ("munge.key", 0o600)] {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.path().join(file), mode).map_err(|error| error.to_string())?;
        }
        let munge: Vec<String> = [
            "key-file=munge.key",
            "socket=munge.sock",
            "pid-file=munged.pid",
            "log-file=munge.log",
            "seed-file=munge.seed",
        ]
        .iter()
        .map(|option| format!("--{}", option.replace('=', &format!("={name}/"))))
        .collect();
        let mut arguments: Vec<&str> = munge.iter().map(String::as_str).collect();
        arguments.extend(["--num-threads=1", "--foreground"]);
        let mut cluster = Self {
            folder,
            daemons: Vec::new(),
        };
        for (program, arguments) in [
            ("munged", &arguments[..]),
            ("slurmctld", &["-D"][..]),
            ("slurmd", &["-D"][..]),
        ] {
            let daemon = start(program, arguments, cluster.folder.path())?;
            cluster.daemons.push(daemon);
        }
        cluster.wait()?;
        Ok(cluster)
    }

    fn wait(&mut self) -> Result<(), String> {
        let until = Instant::now() + UP;
        loop {
            let state = self.slurm("sinfo").args(["-h", "-o", "%T"]).output();
            if state.is_ok_and(|output| text(&output.stdout).trim() == "idle") {
                return Ok(());
            }
            let ended = self
                .daemons
                .iter_mut()
                .any(|daemon| !matches!(daemon.try_wait(), Ok(None)));
            if ended || Instant::now() > until {
                return Err(format!("Slurm does not start here: {}", self.last_words()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn slurm(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    fn last_words(&self) -> String {
        let last = |program| {
            let log = std::fs::read_to_string(self.folder.path().join(format!("{program}.log"))).ok()?;
            Some(format!("{program}: {}", log.lines().last()?))
        };
        let words: Vec<String> = ["munged", "slurmctld", "slurmd"]
            .into_iter()
            .filter_map(last)
            .collect();
        words.join("; ")
    }

    /// Returns the list of Slurm's MPI plug-ins.
    fn plugins(&self) -> String {
        let listed = self.slurm("srun").arg("--mpi=list").output().unwrap();
        text(&listed.stdout) + &text(&listed.stderr)
    }
}

/// `srun` in this cluster with a plug-in, and what is found then.
fn srun(cluster: &Cluster, plugin: &'static str, kind: &'static str) -> Launcher {
    let conf = cluster.folder.path().join("slurm.conf").display().to_string();
    Launcher {
        words: vec!["srun", plugin],
        variables: vec![("SLURM_CONF", conf)],
        rank: "SLURM_PROCID",
        kind,
    }
}

#[test]
fn ranks_of_srun_gather_measure_and_end_together() {
    const TEST: &str = "ranks_of_srun_gather_measure_and_end_together";
    if let Some(why) = lacking() {
        return skipped(TEST, &why);
    }
    let cluster = match Cluster::up() {
        Ok(cluster) => cluster,
        Err(why) => return skipped(TEST, &why),
    };
    let pmi2 = srun(&cluster, "--mpi=pmi2", "pmi2");
    let mut launchers = vec![
        pmi2.clone(),
        // Slurm's plug-in has the older protocol as well.
        pmi2.with("DOORBELL_LAUNCH", "pmi1", "pmi1"),
        srun(&cluster, "--mpi=none", "environment"),
    ];
    if cluster.plugins().contains("pmix") {
        launchers.push(srun(&cluster, "--mpi=pmix", "pmix"));
    } else {
        skipped(&format!("{TEST} (pmix)"), "this Slurm has no plug-in for PMIx");
    }
    for launcher in &launchers {
        for rail in ["shm", "udp:lo"] {
            gathers(launcher, 4, rail);
        }
        measures(launcher, 2, "shm");
        is_found(launcher);
        starts_no_more(launcher);
    }
    // Without a plug-in, nothing ends the others: that is what `srun --kill-on-bad-exit` is for.
    for launcher in launchers.iter().filter(|launcher| launcher.kind != "environment") {
        ends_with_a_killed_rank(launcher);
    }
}

fn is_found(launcher: &Launcher) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = crate::launchers::job(launcher, 1, scratch.path());
    command
        .arg(assert_cmd::cargo::cargo_bin("doorbell"))
        .args(["info", "--json"]);
    let ended = crate::launchers::run(command);
    let info: serde_json::Value = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&ended.stderr)));
    assert_eq!(info["launcher"]["kind"], launcher.kind);
}
