//! Programs of this machine that run as long as a guest does: models of devices, which QEMU shows to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::scenarios::Beside;
use crate::error::Error;

/// The name that stands for the folder of these programs in a line of arguments.
const FOLDER: char = '@';
/// How long one may take until it is ready, in tenths of a second.
const READY: u32 = 200;

/// Starts the programs beside the machine, waits for each to be ready, runs the machine, and ends them with
/// it. Their output goes to the console.
const SCRIPT: &str = r#"
programs=
# A program that is sent SIGTERM has to end well, if it does not just let the signal end it.
end() {
    kill $programs 2> /dev/null
    for program in $programs; do
        wait $program
        status=$?
        [ $status = 0 ] || [ $status = 143 ] || echo "LAB failed: beside the machine -- a program ended with $status; its words are above"
    done
}
trap end EXIT
while [ "$1" != -- ]; do
    eval "$1 &"
    programs="$programs $!"
    tenths=0
    until [ -e "$2" ]; do
        tenths=$((tenths + 1))
        if [ $tenths -gt "$LAB_READY" ] || ! kill -0 $! 2> /dev/null; then
            echo "LAB failed: beside the machine -- \`$1\` made no $2"
            exit 1
        fi
        sleep 0.1
    done
    shift 2
done
shift
"$@"
"#;

/// A folder for sockets: their names have to be short. It is gone with this.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("doorbell-lab-{}", std::process::id()));
        // Left by an earlier process with this number.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).map_err(Error::file("create", &path))?;
        Ok(Self(path))
    }

    /// Returns a text of the table with the folder in place of `@`.
    pub(super) fn in_words(&self, words: &str) -> String {
        words.replace(FOLDER, &self.0.to_string_lossy())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // In the folder for what is temporary, where others look after what is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the machine's command with the programs beside it: commands of `doorbell-lab`, whose file is
/// `lab`.
pub(super) fn with(programs: &[Beside], folder: &Folder, lab: &Path, machine: Command) -> Command {
    if programs.is_empty() {
        return machine;
    }
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SCRIPT, "beside"]);
    command.env("LAB_READY", READY.to_string());
    for program in programs {
        let words = format!("'{}' {}", lab.display(), folder.in_words(program.words));
        command.arg(words).arg(folder.in_words(program.ready));
    }
    command
        .arg("--")
        .arg(machine.get_program())
        .args(machine.get_args());
    for (name, value) in machine.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(script: &str) -> Command {
        let mut machine = Command::new("/bin/sh");
        machine.args(["-c", script]).env("SEEN", "yes");
        machine
    }

    /// Status and words of a machine beside which a shell runs these words.
    fn run(folder: &Folder, words: &'static str, machine: Command) -> (Option<i32>, String) {
        let programs = [Beside {
            words,
            ready: "@/ready",
        }];
        let out = with(&programs, folder, Path::new("/bin/sh"), machine)
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    }

    #[test]
    fn the_machine_begins_when_what_is_beside_is_ready_and_both_end_together() {
        let folder = Folder::new().unwrap();
        let beside = "-c 'sleep 0.3; echo $$ > @/pid; : > @/ready; exec sleep 100'";
        let script = folder.in_words("test -e @/ready && test $SEEN = yes && echo runs; exit 7");
        assert_eq!(
            run(&folder, beside, machine(&script)),
            (Some(7), "runs\n".to_owned())
        );
        let pid = std::fs::read_to_string(folder.in_words("@/pid")).unwrap();
        assert!(
            !Path::new("/proc").join(pid.trim()).exists(),
            "ended with the machine"
        );
        std::fs::remove_file(folder.in_words("@/ready")).unwrap();
        let bad = "-c 'trap \"exit 5\" TERM; : > @/ready; while :; do sleep 0.1; done'";
        let (status, said) = run(&folder, bad, machine("exit 7"));
        assert_eq!(status, Some(7));
        assert!(
            said.contains("LAB failed: beside the machine -- a program ended with 5"),
            "{said}"
        );
        // A program that is not ready by its end is reported, and then no machine is started.
        std::fs::remove_file(folder.in_words("@/ready")).unwrap();
        let (status, said) = run(&folder, "-c 'exit 3'", machine("echo runs"));
        assert_eq!(status, Some(1));
        assert!(
            said.contains("LAB failed: beside the machine") && !said.contains("runs"),
            "{said}"
        );
        let path = folder.0.clone();
        drop(folder);
        assert!(!path.exists());
        assert_eq!(
            with(&[], &Folder(path), Path::new("x"), machine("")).get_program(),
            "/bin/sh"
        );
    }
}
