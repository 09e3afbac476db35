//! `doorbell agent`: a process that owns a physical function, for the rails of its virtual ones.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_fabric::error::{Exit, RailError};
use doorbell_usnic::{Agent, Object, Pf, Told, Trouble};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{AgentCommand, UsnicAgentArgs};
use crate::error::ToolError;
use crate::out;

/// How long one turn waits for somebody.
const TURN: Duration = Duration::from_millis(20);

/// `doorbell agent KIND`.
pub(crate) fn agent(command: &AgentCommand) -> Result<ExitCode, ToolError> {
    let AgentCommand::Usnic(args) = command;
    usnic(args)
}

fn usnic(args: &UsnicAgentArgs) -> Result<ExitCode, ToolError> {
    let object = Object::parse(&args.pf).map_err(ToolError::Usage)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|source| ToolError::System {
            what: "wait for signals",
            source,
        })?;
    }
    let refused = |trouble: Trouble| unusable(&args.pf, &trouble);
    let socket = socket(args, &object);
    let pf = match &object {
        Object::Pci(bdf) => Pf::open(*bdf),
        Object::Model { .. } => Pf::connect(&object.socket().unwrap_or_default()),
    };
    let mut agent = Agent::new(pf.map_err(refused)?, &socket).map_err(refused)?;
    out::print(&format!("{}\n", begins(&agent)))?;
    while !stop.load(Ordering::Relaxed) {
        let told = agent
            .turn(TURN)
            .map_err(|fault| unusable(&args.pf, &Trouble::Fault(fault)))?;
        for one in told {
            out::print(&format!("{}\n", says(one)))?;
        }
    }
    Ok(Exit::Done.into())
}

fn unusable(pf: &str, trouble: &Trouble) -> ToolError {
    RailError::Unusable {
        rail: format!("usnic:{pf}"),
        reason: trouble.to_string(),
        remedy: trouble.fix(),
    }
    .into()
}

/// Where rails look for it when nothing else is set.
fn socket(args: &UsnicAgentArgs, object: &Object) -> PathBuf {
    match (&args.socket, object) {
        (Some(socket), _) => socket.clone(),
        (None, Object::Model { folder, .. }) => folder.join("agent.sock"),
        (None, Object::Pci(bdf)) => {
            let folder = Path::new("/run/doorbell");
            // Where it cannot be made, the socket cannot either, and that is told.
            let _ = std::fs::create_dir_all(folder);
            folder.join(format!("usnic-{bdf}.sock"))
        }
    }
}

fn begins(agent: &Agent) -> String {
    let info = agent.pf().info();
    let mac = info.mac.map_or_else(
        || "no hardware address".to_owned(),
        |[a, b, c, d, e, f]| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
    );
    let usnic = if info.has_usnic {
        ""
    } else {
        ", usNIC not configured by its own word"
    };
    format!(
        "agent of {} ({mac}{usnic}), at {}",
        agent.pf().name(),
        agent.path().display()
    )
}

fn says(told: Told) -> String {
    match told {
        Told::Came(function) => format!("function {function}: a process has it"),
        Told::Went(function, count) => {
            format!("function {function}: its process is gone; {count} filters and queue pairs taken away")
        }
        Told::Reset => "the physical function was reset: everything is installed anew".to_owned(),
        Told::Link(true) => "link up".to_owned(),
        Told::Link(false) => "link down".to_owned(),
    }
}
