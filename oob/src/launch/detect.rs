//! Detection of the launcher that started this process: by its variables, in a fixed order, with the reason
//! why each other one was not chosen.
//!
//! | launcher | needs | also provides |
//! |---|---|---|
//! | `doorbell` | DOORBELL_RANK | |
//! | `pmix` | PMIX_NAMESPACE, PMIX_RANK, and libpmix | size and place on the host, by the server |
//! | `pmi2` | PMI_FD, PMI_RANK, PMI_SIZE, and PMI_JOBID, which Slurm sets and hydra does not | SLURM_LOCALID |
//! | `pmi1` | PMI_FD, PMI_RANK, PMI_SIZE | MPI_LOCALRANKID, MPI_LOCALNRANKS of hydra |
//! | `environment` | OMPI_COMM_WORLD_RANK, or SLURM_PROCID and SLURM_STEP_ID, or PMI_RANK, each with its size | |
//! | `singleton` | nothing | |
//!
//! SLURM_PROCID alone does not suffice: a batch script has it too, and is not a task of a step.

use super::pmix as pmix_door;
use super::singleton::VARIABLE;
use super::{Kind, LaunchError};
use crate::pmix;

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The launcher that was requested; `None` takes the first one found.
    pub kind: Option<Kind>,
    /// Rank and size, if they are given directly (DOORBELL_RANK, DOORBELL_SIZE).
    pub ours: Option<(u32, Option<u32>)>,
    /// The name of the PMIx library, instead of the default.
    pub library: Option<String>,
}

/// A launcher, and the values of its variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The kind of the launcher.
    pub kind: Kind,
    /// The variables that identified it.
    pub because: String,
    /// The rank of this process.
    pub rank: u32,
    /// The size of the job, if a variable has it.
    pub size: Option<u32>,
    /// The index of this process on its host.
    pub local_rank: Option<u32>,
    /// Number of processes of the job on this host.
    pub local_size: Option<u32>,
    /// Number of hosts of the job.
    pub hosts: Option<u32>,
    /// The launcher's name for the job; empty if it has none.
    pub job: String,
    /// The inherited descriptor, for PMI.
    pub descriptor: Option<i32>,
    /// Whether other ranks had this process started (PMI_SPAWNED, DOORBELL_SPAWNED, DOORBELL_INVITATION).
    pub spawned: bool,
    /// The invitation, if a variable has it.
    pub invitation: Option<String>,
    /// The PMIx library to load.
    pub library: String,
    /// The other launchers, each with the reason why it was not chosen.
    pub others: Vec<(Kind, String)>,
}

/// The values of one launcher's variables.
#[derive(Default)]
struct Facts {
    because: String,
    rank: u32,
    size: Option<u32>,
    local_rank: Option<u32>,
    local_size: Option<u32>,
    hosts: Option<u32>,
    job: String,
    descriptor: Option<i32>,
    /// Whether a singleton has started this process.
    invited: bool,
    invitation: Option<String>,
}

/// Returns the launcher that this process is to use.
///
/// ```
/// use doorbell_oob::launch::{Kind, Wanted, detect};
/// let hydra = |name: &str| match name {
///     "PMI_FD" => Some("6".to_owned()),
///     "PMI_RANK" => Some("1".to_owned()),
///     "PMI_SIZE" => Some("4".to_owned()),
///     _ => None,
/// };
/// let found = detect(&Wanted::default(), &hydra)?;
/// assert_eq!((found.kind, found.rank, found.size), (Kind::Pmi1, 1, Some(4)));
/// # Ok::<(), doorbell_oob::launch::LaunchError>(())
/// ```
///
/// # Errors
/// [`LaunchError::NotPossible`] when the requested launcher is missing; [`LaunchError::Variable`] when a
/// variable is malformed.
pub fn detect(wanted: &Wanted, variables: &dyn Fn(&str) -> Option<String>) -> Result<Found, LaunchError> {
    Search {
        wanted,
        variables,
        loads: &pmix::loads,
    }
    .run()
}

/// Returns the option by which a launcher gives each rank two cores, with its program.
pub fn two_cores(kind: Kind, variables: &dyn Fn(&str) -> Option<String>) -> &'static str {
    const OURS: &str = "`doorbell run --cores-per-rank 2`";
    const MPIRUN: &str = "`mpirun --map-by slot:pe=2`";
    const HYDRA: &str = "`mpiexec -bind-to core:2`";
    const SRUN: &str = "`srun -c 2`";
    let has = |name: &str| variables(name).is_some();
    let is_step = variables("PMIX_NAMESPACE").is_some_and(|job| job.starts_with("slurm.pmix"));
    match kind {
        Kind::Doorbell => OURS,
        Kind::Singleton => "`taskset -c` with two cores",
        Kind::Pmix if is_step => SRUN,
        Kind::Pmix => MPIRUN,
        Kind::Pmi1 | Kind::Pmi2 if has("MPI_LOCALNRANKS") => HYDRA,
        Kind::Pmi2 => SRUN,
        // The daemons of `doorbell run --hosts` have this protocol, too.
        Kind::Pmi1 if has("DOORBELL_ROOT") => OURS,
        Kind::Environment if has("OMPI_COMM_WORLD_RANK") => MPIRUN,
        Kind::Pmi1 | Kind::Environment if has("SLURM_STEP_ID") => SRUN,
        Kind::Pmi1 | Kind::Environment => HYDRA,
    }
}

struct Search<'a> {
    wanted: &'a Wanted,
    variables: &'a dyn Fn(&str) -> Option<String>,
    loads: &'a dyn Fn(&str) -> Result<(), LaunchError>,
}

impl Search<'_> {
    fn run(&self) -> Result<Found, LaunchError> {
        let mut taken: Option<(Kind, Facts)> = None;
        let mut others = Vec::new();
        for kind in Kind::ALL {
            if let Some((first, _)) = &taken {
                others.push((kind, format!("{first} has precedence")));
                continue;
            }
            if let Some(named) = self.wanted.kind.filter(|named| *named != kind) {
                others.push((kind, format!("{named} was requested")));
                continue;
            }
            match self.judge(kind)? {
                Ok(facts) => taken = Some((kind, facts)),
                Err(reason) if self.wanted.kind.is_some() => {
                    return Err(LaunchError::NotPossible { kind, reason });
                }
                Err(reason) => others.push((kind, reason)),
            }
        }
        let (kind, facts) = taken.unwrap_or_else(|| (Kind::Singleton, Facts::default()));
        Ok(Found {
            kind,
            because: facts.because,
            rank: facts.rank,
            size: facts.size,
            local_rank: facts.local_rank,
            local_size: facts.local_size,
            hosts: facts.hosts,
            job: facts.job,
            descriptor: facts.descriptor,
            spawned: match kind {
                Kind::Singleton | Kind::Pmix => facts.invitation.is_some() || facts.invited,
                _ => self.text("PMI_SPAWNED").is_some_and(|text| text != "0"),
            },
            invitation: facts.invitation,
            library: self.library().to_owned(),
            others,
        })
    }

    fn judge(&self, kind: Kind) -> Result<Result<Facts, String>, LaunchError> {
        match kind {
            Kind::Doorbell => Ok(self.doorbell()),
            Kind::Pmix => self.pmix(),
            Kind::Pmi2 if self.wanted.kind.is_none() && self.text("PMI_JOBID").is_none() => {
                Ok(Err("PMI_JOBID is not set, which PMI-2 needs".to_owned()))
            }
            Kind::Pmi1 | Kind::Pmi2 => self.pmi(),
            Kind::Environment => self.environment(),
            Kind::Singleton => self.alone(),
        }
    }

    fn alone(&self) -> Result<Result<Facts, String>, LaunchError> {
        let at = self.number(VARIABLE)?;
        let because = match (self.wanted.kind, at) {
            (_, Some(_)) => "DOORBELL_SPAWNED is set",
            (Some(_), None) => "it was requested",
            (None, None) => "no launcher has set anything",
        };
        Ok(Ok(Facts {
            because: because.to_owned(),
            rank: at.unwrap_or(0),
            size: Some(1),
            local_rank: Some(0),
            local_size: Some(1),
            invited: at.is_some(),
            ..Facts::default()
        }))
    }

    fn library(&self) -> &str {
        self.wanted.library.as_deref().unwrap_or(pmix::LIBRARY)
    }

    fn doorbell(&self) -> Result<Facts, String> {
        match self.wanted.ours {
            Some((rank, size)) => Ok(Facts {
                because: "DOORBELL_RANK is set".to_owned(),
                rank,
                size,
                ..Facts::default()
            }),
            None => Err("DOORBELL_RANK is not set".to_owned()),
        }
    }

    fn pmix(&self) -> Result<Result<Facts, String>, LaunchError> {
        let Some(job) = self.text("PMIX_NAMESPACE") else {
            return Ok(Err("PMIX_NAMESPACE is not set".to_owned()));
        };
        let Some(rank) = self.number("PMIX_RANK")? else {
            return Ok(Err("PMIX_NAMESPACE is set, but PMIX_RANK is not".to_owned()));
        };
        if let Some(invitation) = self.text(pmix_door::VARIABLE) {
            // Such a process does not query its launcher.
            return Ok(Ok(Facts {
                because: "PMIX_NAMESPACE and DOORBELL_INVITATION are set".to_owned(),
                rank,
                job,
                invitation: Some(invitation),
                ..Facts::default()
            }));
        }
        if let Err(error) = (self.loads)(self.library()) {
            return Ok(Err(format!("PMIX_NAMESPACE is set, but {error}")));
        }
        // Within a Slurm step, processes of another launcher inherit its variables without being its tasks.
        let step = job.starts_with("slurm.pmix");
        let size = match self.number("OMPI_COMM_WORLD_SIZE")? {
            None if step => self.step_size()?,
            size => size,
        };
        let (local_rank, local_size) = match size {
            Some(_) => self.local()?,
            None => (None, None),
        };
        Ok(Ok(Facts {
            because: "PMIX_NAMESPACE is set".to_owned(),
            rank,
            size,
            local_rank,
            local_size,
            job,
            ..Facts::default()
        }))
    }

    fn pmi(&self) -> Result<Result<Facts, String>, LaunchError> {
        let Some(text) = self.text("PMI_FD") else {
            return Ok(Err("PMI_FD is not set".to_owned()));
        };
        let descriptor = text.parse().ok().filter(|number: &i32| *number >= 0);
        let descriptor = descriptor.ok_or(LaunchError::Variable {
            name: "PMI_FD",
            value: shown(&text),
            expected: "the number of a descriptor",
        })?;
        let (Some(rank), Some(size)) = (self.number("PMI_RANK")?, self.number("PMI_SIZE")?) else {
            return Ok(Err("PMI_FD is set, but PMI_RANK and PMI_SIZE are not".to_owned()));
        };
        let (local_rank, local_size) = self.local()?;
        Ok(Ok(Facts {
            because: "PMI_FD is set".to_owned(),
            rank,
            size: Some(size),
            local_rank,
            local_size,
            job: self.text("PMI_JOBID").unwrap_or_default(),
            descriptor: Some(descriptor),
            ..Facts::default()
        }))
    }

    fn environment(&self) -> Result<Result<Facts, String>, LaunchError> {
        let (local_rank, local_size) = self.local()?;
        let all = |because: &str, rank, size, hosts, job: Option<String>| {
            Ok(Ok(Facts {
                because: because.to_owned(),
                rank,
                size: Some(size),
                local_rank,
                local_size,
                hosts,
                job: job.map_or_else(String::new, |job| named(&job)),
                ..Facts::default()
            }))
        };
        if let Some(rank) = self.number("OMPI_COMM_WORLD_RANK")?
            && let Some(size) = self.number("OMPI_COMM_WORLD_SIZE")?
        {
            // Either all ranks are here, or some are elsewhere on an unknown number of hosts.
            let hosts = local_size.map(|here| if here == size { 1 } else { 2 });
            let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].map(|name| self.text(name));
            let job = job.into_iter().flatten().next().map(|job| format!("ompi-{job}"));
            return all("OMPI_COMM_WORLD_RANK is set", rank, size, hosts, job);
        }
        if let Some(rank) = self.number("SLURM_PROCID")?
            && let Some(step) = self.text("SLURM_STEP_ID")
            && let Some(size) = self.step_size()?
        {
            let hosts = match self.number("SLURM_STEP_NUM_NODES")? {
                None => self.number("SLURM_NNODES")?,
                hosts => hosts,
            };
            let job = self.text("SLURM_JOB_ID").map(|job| format!("slurm-{job}.{step}"));
            return all("SLURM_PROCID and SLURM_STEP_ID are set", rank, size, hosts, job);
        }
        if let Some(rank) = self.number("PMI_RANK")?
            && let Some(size) = self.number("PMI_SIZE")?
        {
            let hosts = local_size.map(|here| if here == size { 1 } else { 2 });
            let job = self.text("PMI_JOBID").map(|job| format!("pmi-{job}"));
            return all("PMI_RANK is set", rank, size, hosts, job);
        }
        Ok(Err(
            "none of OMPI_COMM_WORLD_RANK, SLURM_PROCID with SLURM_STEP_ID, and PMI_RANK is set with its size"
                .to_owned(),
        ))
    }

    /// Returns the number of tasks of a Slurm step.
    fn step_size(&self) -> Result<Option<u32>, LaunchError> {
        match self.number("SLURM_STEP_NUM_TASKS")? {
            None => self.number("SLURM_NTASKS"),
            size => Ok(size),
        }
    }

    /// Returns the index and the number of processes on this host, if variables have them.
    fn local(&self) -> Result<(Option<u32>, Option<u32>), LaunchError> {
        for [rank, size] in [
            ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
            ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        ] {
            if let Some(rank) = self.number(rank)? {
                return Ok((Some(rank), self.number(size)?));
            }
        }
        let Some(rank) = self.number("SLURM_LOCALID")? else {
            return Ok((None, None));
        };
        let tasks = self.text("SLURM_STEP_TASKS_PER_NODE").unwrap_or_default();
        Ok((Some(rank), tasks_of(&tasks, self.number("SLURM_NODEID")?)))
    }

    /// Returns a variable that is set and not empty.
    fn text(&self, name: &str) -> Option<String> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &'static str) -> Result<Option<u32>, LaunchError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(LaunchError::Variable {
                name,
                value: shown(&text),
                expected: "a whole number",
            }),
        }
    }
}

/// Returns the tasks of one node from Slurm's `2(x3),1`: three nodes with two tasks, one with one.
fn tasks_of(list: &str, node: Option<u32>) -> Option<u32> {
    let mut before = 0u32;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1u32),
        };
        before = before.checked_add(nodes)?;
        if node? < before {
            return tasks.parse().ok();
        }
    }
    None
}

/// Returns a job's name in characters that the name of a socket may have.
fn named(job: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    job.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(60)
        .collect()
}

fn shown(text: &str) -> String {
    text.chars()
        .take(40)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Set<'a> = &'a [(&'a str, &'a str)];

    fn search(wanted: &Wanted, set: Set<'_>, library: bool) -> Result<Found, LaunchError> {
        let of = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name)?;
            Some(found.1.to_owned())
        };
        let loads = |name: &str| match library {
            true => Ok(()),
            false => Err(LaunchError::Library {
                name: name.to_owned(),
                reason: "no such file".to_owned(),
            }),
        };
        Search {
            wanted,
            variables: &of,
            loads: &loads,
        }
        .run()
    }

    fn found(set: Set<'_>) -> Found {
        search(&Wanted::default(), set, true).unwrap()
    }

    const OPEN_MPI: Set<'_> = &[
        ("PMIX_NAMESPACE", "224854017"),
        ("PMIX_RANK", "3"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];
    const HYDRA: Set<'_> = &[
        ("PMI_FD", "6"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
    ];
    const SLURM: Set<'_> = &[
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_NTASKS", "9"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "1"),
    ];

    fn with<'a>(set: Set<'a>, more: Set<'a>) -> Vec<(&'a str, &'a str)> {
        [set, more].concat()
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        let open_mpi = found(OPEN_MPI);
        assert_eq!(
            (open_mpi.kind, open_mpi.rank, open_mpi.size),
            (Kind::Pmix, 3, Some(4))
        );
        assert_eq!((open_mpi.local_rank, open_mpi.local_size), (Some(3), Some(4)));
        assert_eq!(
            open_mpi.others[0],
            (Kind::Doorbell, "DOORBELL_RANK is not set".to_owned())
        );
        assert_eq!(
            open_mpi.others[4],
            (Kind::Singleton, "pmix has precedence".to_owned())
        );
        let hydra = found(HYDRA);
        assert_eq!(
            (hydra.kind, hydra.descriptor, hydra.local_size),
            (Kind::Pmi1, Some(6), Some(2))
        );
        let slurm2 = found(&with(&with(HYDRA, SLURM), &[("PMI_JOBID", "17.0")]));
        assert_eq!((slurm2.kind, slurm2.job.as_str()), (Kind::Pmi2, "17.0"));
        let slurm = found(SLURM);
        assert_eq!(
            (slurm.kind, slurm.rank, slurm.size),
            (Kind::Environment, 2, Some(3))
        );
        assert_eq!((slurm.hosts, slurm.local_size), (Some(2), Some(1)));
        assert_eq!(slurm.job, "slurm-17.0");
        assert_eq!(found(&[]).kind, Kind::Singleton);
        // Set but empty counts as not set.
        assert_eq!(
            found(&[("PMI_FD", ""), ("PMIX_NAMESPACE", "")]).kind,
            Kind::Singleton
        );
    }

    #[test]
    fn the_size_of_a_step_of_slurm_counts_only_for_its_own_tasks() {
        let step = with(
            SLURM,
            &[("PMIX_NAMESPACE", "slurm.pmix.17.0"), ("PMIX_RANK", "2")],
        );
        let task = found(&step);
        assert_eq!(
            (task.kind, task.size, task.local_rank),
            (Kind::Pmix, Some(3), Some(0))
        );
        let inside = with(
            SLURM,
            &[("PMIX_NAMESPACE", "prterun-node-1@1"), ("PMIX_RANK", "5")],
        );
        let inside = found(&inside);
        assert_eq!(
            (inside.kind, inside.size, inside.local_rank),
            (Kind::Pmix, None, None)
        );
    }

    #[test]
    fn a_batch_script_is_no_rank() {
        let script = [
            ("SLURM_PROCID", "0"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_NTASKS", "9"),
        ];
        assert_eq!(found(&script).kind, Kind::Singleton);
    }

    #[test]
    fn our_own_launcher_comes_first() {
        let wanted = Wanted {
            ours: Some((1, Some(2))),
            ..Wanted::default()
        };
        let ours = search(&wanted, OPEN_MPI, true).unwrap();
        assert_eq!((ours.kind, ours.rank, ours.size), (Kind::Doorbell, 1, Some(2)));
    }

    #[test]
    fn without_its_library_the_variables_are_what_is_left() {
        let left = search(&Wanted::default(), OPEN_MPI, false).unwrap();
        assert_eq!(
            (left.kind, left.hosts, left.job.as_str()),
            (Kind::Environment, Some(1), "ompi-224854017")
        );
        let (_, reason) = left.others.iter().find(|(kind, _)| *kind == Kind::Pmix).unwrap();
        assert!(
            reason.contains("libpmix.so.2") && reason.contains("DOORBELL_PMIX_LIBRARY"),
            "{reason}"
        );
    }

    #[test]
    fn one_that_is_named_is_used_or_refused_with_the_reason() {
        let named = |kind, set, library| {
            let wanted = Wanted {
                kind: Some(kind),
                ..Wanted::default()
            };
            search(&wanted, set, library)
        };
        assert_eq!(named(Kind::Pmi2, HYDRA, true).unwrap().kind, Kind::Pmi2);
        assert_eq!(named(Kind::Singleton, HYDRA, true).unwrap().size, Some(1));
        assert_eq!(
            named(Kind::Environment, OPEN_MPI, true).unwrap().kind,
            Kind::Environment
        );
        for (kind, set, library, word) in [
            (Kind::Pmix, HYDRA, true, "PMIX_NAMESPACE is not set"),
            (Kind::Pmix, OPEN_MPI, false, "libpmix2"),
            (
                Kind::Pmix,
                &[("PMIX_NAMESPACE", "x")][..],
                true,
                "PMIX_RANK is not",
            ),
            (Kind::Pmi1, OPEN_MPI, true, "PMI_FD is not set"),
            (Kind::Pmi2, &[("PMI_FD", "3")][..], true, "PMI_RANK and PMI_SIZE"),
            (Kind::Environment, &[][..], true, "none of OMPI_COMM_WORLD_RANK"),
            (Kind::Doorbell, OPEN_MPI, true, "DOORBELL_RANK is not set"),
        ] {
            let error = named(kind, set, library).unwrap_err();
            assert_eq!(error.code(), "launch.not-possible");
            let text = error.to_string();
            assert!(text.contains(word) && text.contains(kind.name()), "{text}");
        }
    }

    #[test]
    fn variables_with_invalid_values_are_named() {
        for set in [
            &[("PMI_FD", "six"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")][..],
            &[("PMI_FD", "-1"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")],
            &[("PMI_FD", "6"), ("PMI_RANK", "-1"), ("PMI_SIZE", "1")],
            &[("PMIX_NAMESPACE", "n"), ("PMIX_RANK", "4294967296")],
            &[("SLURM_LOCALID", "x\u{7}")],
        ] {
            let error = search(&Wanted::default(), set, true).unwrap_err();
            assert_eq!(error.code(), "launch.variables");
            assert!(!error.to_string().contains('\u{7}'));
        }
    }

    #[test]
    fn slurm_s_lists_of_tasks_are_read() {
        for (list, node, tasks) in [
            ("2", Some(0), Some(2)),
            ("2(x3),1", Some(2), Some(2)),
            ("2(x3),1", Some(3), Some(1)),
            ("2(x3),1", Some(4), None),
            ("2(x3", Some(0), None),
            ("", Some(0), None),
            ("1(x4294967295),1(x9)", Some(4_294_967_295), None),
            ("2", None, None),
        ] {
            assert_eq!(tasks_of(list, node), tasks, "{list} {node:?}");
        }
    }

    #[test]
    fn names_of_jobs_are_fit_for_sockets() {
        assert_eq!(named("a/b c\0"), "a_b_c_");
        assert_eq!(named(&"x".repeat(100)).len(), 60);
    }

    #[test]
    fn each_launcher_has_its_own_option_for_two_cores() {
        let option = |kind, names: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = names.iter().find(|(known, _)| *known == name)?;
                Some(found.1.to_owned())
            };
            two_cores(kind, &value)
        };
        for (kind, names, part) in [
            (
                Kind::Pmix,
                &[("PMIX_NAMESPACE", "prterun-1")][..],
                "--map-by slot:pe=2",
            ),
            (Kind::Pmix, &[("PMIX_NAMESPACE", "slurm.pmix.7.0")], "srun -c 2"),
            (Kind::Environment, &[("OMPI_COMM_WORLD_RANK", "0")], "mpirun"),
            (Kind::Environment, &[("SLURM_STEP_ID", "0")], "srun"),
            (Kind::Pmi1, &[("MPI_LOCALNRANKS", "2")], "-bind-to core:2"),
            (Kind::Pmi1, &[("SLURM_STEP_ID", "0")], "srun"),
            (Kind::Pmi1, &[("DOORBELL_ROOT", "@x")], "--cores-per-rank 2"),
            (Kind::Pmi2, &[], "srun"),
            (Kind::Doorbell, &[], "doorbell run"),
            (Kind::Singleton, &[], "taskset"),
        ] {
            let option = option(kind, names);
            assert!(option.contains(part), "{kind}: {option}");
        }
    }
}
