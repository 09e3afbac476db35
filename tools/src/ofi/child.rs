//! A process that loads one file of libfabric, so that the program itself loads none: a provider's code may
//! crash or hang.
//!
//! It is this program with a hidden command. It prints one line of JSON.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use doorbell_fabric::error::Exit;
use libfabric_sys::{FI_ENODATA, Hint, InfoList, Library, ProviderFile};
use serde::{Deserialize, Serialize};

use super::PROVIDER;
use super::clients::{CLIENTS, Client};
use crate::console;
use crate::error::ToolError;
use crate::process::{Runner, Stop};

/// Nothing here takes as long on a system that works, however busy it is.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a child loads and looks at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// A provider's file, alone.
    File(PathBuf),
    /// A libfabric's release.
    Release(PathBuf),
    /// A libfabric, with its providers, as each client uses it.
    Clients(PathBuf),
}

/// What a provider's file reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) name: String,
    /// The API level, as in 2.6.
    pub(crate) level: String,
}

/// What a libfabric answers about our provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) release: String,
    /// The domains that it lists for our provider; the error if there are none.
    pub(crate) domains: Result<Vec<String>, String>,
    pub(crate) clients: Vec<Verdict>,
}

/// Whether a client would take the provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) client: String,
    pub(crate) level: String,
    pub(crate) one_sided: bool,
    /// The domain that it would take.
    pub(crate) domain: Option<String>,
    /// The hints that cannot be met, with their names; or the library's error.
    pub(crate) refused: Vec<String>,
}

/// Runs a task in a child and reads its answer.
///
/// # Errors
/// A message for the user, if the child crashed, hung, or could not load the file: the loader's own words.
pub(crate) fn run<T: for<'a> Deserialize<'a>>(runner: &Runner, task: &Task) -> Result<T, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
    let text = serde_json::to_string(task).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["ofi-child", &text]);
    // PSM's library, which some libfabrics load, writes a file into the current folder at a crash.
    command.env("IPATH_NO_BACKTRACE", "1");
    let ended = runner
        .run("a process that loads libfabric", command, PATIENCE)
        .map_err(|stop| match stop {
            Stop::Failed(why) => why,
            Stop::Interrupted(_) => "it was interrupted".to_owned(),
            Stop::Ended(error) => error.to_string(),
        })?;
    let line = ended.out.lines().last().unwrap_or_default();
    match serde_json::from_str::<Result<T, String>>(line) {
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "the process that loaded it ended without an answer ({}): {}",
            ended.failure().unwrap_or_else(|| "exit status 0".to_owned()),
            ended.last_words()
        )),
    }
}

/// Carries out the task of a child, and prints the answer.
pub(crate) fn carry_out(text: &str) -> Result<ExitCode, ToolError> {
    let task: Task = serde_json::from_str(text)
        .map_err(|error| ToolError::Usage(format!("ofi-child: no such task: {error}")))?;
    let line = match &task {
        Task::File(path) => answer(&file(path)),
        Task::Release(path) => answer(&open(path).map(|library| library.release().to_string())),
        Task::Clients(path) => answer(&taken(path)),
    }?;
    console::print(&line)?;
    Ok(Exit::Done.into())
}

fn answer<T: Serialize>(answer: &Result<T, String>) -> Result<String, ToolError> {
    let text = serde_json::to_string(answer).map_err(|error| ToolError::System {
        what: "write what was found as JSON",
        source: error.into(),
    })?;
    Ok(text + "\n")
}

fn file(path: &Path) -> Result<File, String> {
    let file = ProviderFile::open(path).map_err(|error| error.to_string())?;
    Ok(File {
        name: file.name,
        level: file.level.to_string(),
    })
}

fn open(path: &Path) -> Result<Library, String> {
    Library::open_at(path).map_err(|error| error.to_string())
}

fn taken(path: &Path) -> Result<Taken, String> {
    let library = open(path)?;
    let ours = CString::new(PROVIDER).map_err(|error| error.to_string())?;
    let look = |level, hints: &[Hint]| {
        let hints = library.hints_of(Some(&ours), hints)?;
        library.getinfo(level, None, None, 0, Some(&hints))
    };
    let domains = look(library.level(), &[])
        .map(|list| domains(&list))
        .map_err(|error| error.to_string());
    let judge = |client: &Client| {
        let level = client.level(library.level());
        let mut hints = client.least();
        let mut refused = Vec::new();
        if let Err(error) = look(level, &hints) {
            refused.push(error.to_string());
        } else {
            for (name, hint) in client.wants {
                hints.push(*hint);
                if let Err(error) = look(level, &hints) {
                    hints.pop();
                    // What fails otherwise is more than a hint that cannot be met.
                    refused.push(if error.number == FI_ENODATA {
                        (*name).to_owned()
                    } else {
                        format!("{name}: {error}")
                    });
                }
            }
        }
        let list = look(level, &hints).ok();
        Verdict {
            client: client.name.to_owned(),
            level: level.to_string(),
            one_sided: client.one_sided,
            domain: list
                .and_then(|list| domains_of(&list))
                .filter(|_| refused.is_empty()),
            refused,
        }
    };
    // Where nothing is listed, each client would only repeat it.
    let clients = match &domains {
        Ok(_) => CLIENTS.iter().map(judge).collect(),
        Err(_) => Vec::new(),
    };
    Ok(Taken {
        release: library.release().to_string(),
        domains,
        clients,
    })
}

fn domains(list: &InfoList) -> Vec<String> {
    let mut names: Vec<String> = list.names().into_iter().map(|names| names.domain).collect();
    names.dedup();
    names
}

fn domains_of(list: &InfoList) -> Option<String> {
    list.names().into_iter().next().map(|names| names.domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_and_its_answer_survive_the_way_through_text() {
        let task = Task::File("/a b/libdoorbell-fi.so".into());
        let text = serde_json::to_string(&task).unwrap();
        let Ok(Task::File(path)) = serde_json::from_str(&text) else {
            panic!("{text}");
        };
        assert_eq!(path, Path::new("/a b/libdoorbell-fi.so"));
        let refusal: Result<File, String> = Err("file too short".to_owned());
        let line = answer(&refusal).unwrap();
        assert_eq!(
            serde_json::from_str::<Result<File, String>>(&line).unwrap(),
            refusal
        );
    }

    #[test]
    fn a_file_that_cannot_be_loaded_is_refused_in_the_loader_s_words() {
        let error = file(Path::new("/nowhere/libdoorbell-fi.so")).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
