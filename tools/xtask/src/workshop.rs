//! What is built of other people's sources, and run: a folder below `target`, logs in it, steps that are done
//! once, and the nursery that starts every program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::{Ended, Nursery};
use crate::error::Error;

/// What a step of a build may take.
const BUILD: Duration = Duration::from_secs(3 * 3600);

/// The folder in which things are built and run.
pub(crate) struct Workshop {
    work: PathBuf,
    nursery: Nursery,
}

impl Workshop {
    /// Opens a workshop in a folder, which need not be there yet.
    pub(crate) fn new(work: PathBuf) -> Result<Self, Error> {
        Ok(Self {
            work,
            nursery: Nursery::new()?,
        })
    }

    /// Returns the path of something below the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// Returns a folder below ours, and makes it if it is not there.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, Error> {
        let folder = self.work.join(name);
        std::fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        Ok(folder)
    }

    /// Returns the path of a program's log; characters that a file name should not have become hyphens.
    pub(crate) fn log(&self, name: &str) -> Result<PathBuf, Error> {
        let name = name.replace([':', '/', ';', ' '], "-");
        Ok(self.folder("logs")?.join(format!("{name}.log")))
    }

    /// Runs a program with its output in a file, for at most `bound`, and ends whatever it leaves behind.
    pub(crate) fn run(&self, command: &mut Command, log: &Path, bound: Duration) -> Result<Ended, Error> {
        let file = File::create(log).map_err(Error::file("create", log))?;
        self.nursery.run(command, &file, bound, &mut |_| ())
    }

    /// Runs a step of a build; its output is in a file that an error names.
    pub(crate) fn built(&self, command: &mut Command, name: &str) -> Result<(), Error> {
        let path = self.log(name)?;
        let shown = command.get_program().to_string_lossy().into_owned();
        eprintln!("  {name}: {shown} … (log: {})", path.display());
        match self.run(command, &path, BUILD)? {
            Ended::Exit(status) if status.success() => Ok(()),
            ended => Err(Error::Lab(format!(
                "{shown} of {name} did not succeed ({}); see the last lines of {}",
                how(&ended),
                path.display()
            ))),
        }
    }

    /// Runs make with as many jobs as there are cores.
    pub(crate) fn make(&self, folder: &Path, targets: &[&str], name: &str) -> Result<(), Error> {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new("make");
        command.arg(format!("-j{jobs}")).args(targets).current_dir(folder);
        self.built(&mut command, name)
    }

    /// Copies a tree whose build writes into it, once.
    pub(crate) fn copy_of(&self, tree: &Path, name: &str) -> Result<PathBuf, Error> {
        let trees = self.folder("trees")?;
        let copy = trees.join(name);
        once(&trees, name, || {
            let mut command = Command::new("cp");
            command.args(["-a", "--no-target-directory"]).arg(tree).arg(&copy);
            self.built(&mut command, &format!("{name}-copy"))
        })?;
        Ok(copy)
    }

    /// Copies a tree whose configure script has to be made, and makes it: trees of others are not changed.
    pub(crate) fn with_configure(&self, tree: &Path, autogen: &[&str], name: &str) -> Result<PathBuf, Error> {
        if tree.join("configure").is_file() {
            return Ok(tree.to_path_buf());
        }
        let copy = self.copy_of(tree, name)?;
        once(&self.folder("trees")?, &format!("{name}-autogen"), || {
            let mut command = Command::new(copy.join(autogen[0]));
            command.args(&autogen[1..]).current_dir(&copy);
            self.built(&mut command, &format!("{name}-autogen"))
        })?;
        Ok(copy)
    }
}

/// Runs a step once: what it makes stays for the next run.
pub(crate) fn once(folder: &Path, name: &str, step: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let mark = folder.join(format!(".{name}-is-done"));
    if mark.is_file() {
        return Ok(());
    }
    step()?;
    std::fs::write(&mark, "").map_err(Error::file("create", &mark))
}

/// Copies a file in one step: what runs from the old one goes on.
pub(crate) fn copied(from: &Path, to: &Path) -> Result<(), Error> {
    let beside = to.with_extension("new");
    std::fs::copy(from, &beside).map_err(Error::file("copy", from))?;
    std::fs::rename(&beside, to).map_err(Error::file("create", to))
}

/// Returns how a program ended, in words.
pub(crate) fn how(ended: &Ended) -> String {
    match ended {
        Ended::Exit(status) => status.to_string(),
        Ended::TimedOut => "it did not end in time".to_owned(),
    }
}

/// Checks that programs are on the path; the error names the first that is not, and its package.
pub(crate) fn need(programs: &[(&str, &str)]) -> Result<(), Error> {
    match programs.iter().find(|(program, _)| !is_on_path(program)) {
        None => Ok(()),
        Some((program, package)) => Err(Error::Lab(format!(
            "{program} is not on PATH; install package {package}"
        ))),
    }
}

/// Whether a program is on the path.
pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_done_once_and_again_where_it_failed() {
        let folder = tempfile::tempdir().unwrap();
        let count = std::cell::Cell::new(0);
        let step = |works: bool| {
            once(folder.path(), "step", || {
                count.set(count.get() + 1);
                works.then_some(()).ok_or_else(|| Error::Lab("no".to_owned()))
            })
        };
        assert!(step(false).is_err() && step(true).is_ok() && step(true).is_ok());
        assert_eq!(count.get(), 2);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        assert!(need(&[("sh", "dash")]).is_ok());
        let error = need(&[("sh", "dash"), ("no-such-program", "some-package")]).unwrap_err();
        assert!(
            error.to_string().ends_with("install package some-package"),
            "{error}"
        );
    }
}
