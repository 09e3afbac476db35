//! The last resort: a launcher that only sets rank and size in variables. Nothing can be exchanged through
//! it; the ranks of one host meet at a name derived from the job's.

use std::time::Duration;

use super::{Found, Kind, LaunchError, Launcher, Place};

/// The place that the variables describe.
#[derive(Debug)]
pub struct Environment {
    place: Place,
    meeting: Option<String>,
    what: String,
}

impl Environment {
    /// Returns the rank and size that the variables give.
    ///
    /// # Errors
    /// [`LaunchError::NoExchange`] when ranks of several hosts would have to find each other;
    /// [`LaunchError::Place`] when they are invalid. [`LaunchError::NoExchange`] when ranks of several hosts
    /// would have to find each other; [`LaunchError::Place`].
    pub(super) fn open(found: &Found) -> Result<Self, LaunchError> {
        let what = format!(
            "the variables that set rank {} of {} ({})",
            found.rank,
            found.size.unwrap_or(0),
            found.because
        );
        let place = Place {
            rank: found.rank,
            size: found.size.unwrap_or(0),
            local_rank: found.local_rank,
            local_size: found.local_size,
            job: found.job.clone(),
        };
        let place = place.checked(Kind::Environment)?;
        if found.hosts.is_some_and(|hosts| hosts > 1) {
            return Err(LaunchError::NoExchange {
                what,
                remedy: "ranks on several hosts need a launcher that exchanges values: start them with `srun --mpi=pmix` \
                         or `--mpi=pmi2`, mpirun or hydra",
            });
        }
        let named = !found.job.is_empty();
        let meeting = named.then(|| {
            let uid = rustix::process::geteuid().as_raw();
            format!("@doorbell-launch-{uid}-{}", found.job)
        });
        Ok(Self { place, meeting, what })
    }

    fn no(&self) -> LaunchError {
        LaunchError::NoExchange {
            what: self.what.clone(),
            remedy: "set DOORBELL_ROOT to the same path for all ranks of the host, or use a launcher with PMI",
        }
    }
}

impl Launcher for Environment {
    fn kind(&self) -> Kind {
        Kind::Environment
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn meeting(&self) -> Result<Option<&str>, LaunchError> {
        match &self.meeting {
            Some(name) => Ok(Some(name)),
            None => Err(self.no()),
        }
    }

    fn put(&mut self, _: &str, _: &[u8], _: Duration) -> Result<(), LaunchError> {
        Err(self.no())
    }

    fn fence(&mut self, _: Duration) -> Result<(), LaunchError> {
        Err(self.no())
    }

    fn get(&mut self, _: u32, _: &str, _: Duration) -> Result<Vec<u8>, LaunchError> {
        Err(self.no())
    }

    fn abort(&mut self, _: u8, _: &str, _: Duration) -> Result<(), LaunchError> {
        // A launcher that only started the process sees how it exits.
        Ok(())
    }

    fn finalize(&mut self, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Wanted, detect};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn found(set: &[(&str, &str)]) -> Found {
        let of = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name)?;
            Some(found.1.to_owned())
        };
        let wanted = Wanted {
            kind: Some(Kind::Environment),
            ..Wanted::default()
        };
        detect(&wanted, &of).unwrap()
    }

    const STEP: [(&str, &str); 5] = [
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_NUM_NODES", "1"),
    ];

    #[test]
    fn ranks_of_one_host_meet_at_the_name_of_their_job() {
        let mut one = Environment::open(&found(&STEP)).unwrap();
        assert_eq!(
            (one.place().rank, one.place().size, one.kind()),
            (1, 2, Kind::Environment)
        );
        let name = one.meeting().unwrap().unwrap().to_owned();
        assert!(
            name.starts_with("@doorbell-launch-") && name.ends_with("-slurm-17.0"),
            "{name}"
        );
        for error in [
            one.put("k", b"v", LIMIT).unwrap_err(),
            one.fence(LIMIT).unwrap_err(),
            one.get(0, "k", LIMIT).unwrap_err(),
        ] {
            assert_eq!((error.code(), error.exit().number()), ("launch.no-exchange", 2));
        }
        one.abort(1, "no", LIMIT).unwrap();
        one.finalize(LIMIT).unwrap();
    }

    #[test]
    fn what_cannot_meet_is_refused_with_what_would_help() {
        let mut step = STEP;
        step[4].1 = "3";
        let error = Environment::open(&found(&step)).unwrap_err().to_string();
        assert!(
            error.contains("several hosts") && error.contains("--mpi=pmi2"),
            "{error}"
        );
        let alone = Environment::open(&found(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")])).unwrap();
        let error = alone.meeting().unwrap_err().to_string();
        assert!(
            error.contains("DOORBELL_ROOT") && error.contains("rank 0 of 2"),
            "{error}"
        );
        step[0].1 = "2";
        step[4].1 = "1";
        assert_eq!(
            Environment::open(&found(&step)).unwrap_err().code(),
            "launch.variables"
        );
    }
}
