//! What installs filters for a function, by the settings: an agent, the function itself, or this process.

use std::io::ErrorKind;
use std::path::Path;

use doorbell_fabric::error::RailError;
use doorbell_usnic::{Control, Object, UsnicConfig};

use super::place::{Socket, look, user};
use crate::doctor::chain::{Fix, Link, Walk};

/// Returns the command that starts an agent for a function.
pub(super) fn start(config: &UsnicConfig, object: &Object) -> Fix {
    let more = match object {
        Object::Model { .. } => "in a terminal of its own; it goes on until it is ended",
        Object::Pci(_) => {
            "with the physical function bound to vfio-pci (`doorbell doctor --fix` prints how): the kernel loses that interface"
        }
    };
    let command = doorbell_usnic::agent_command(config, object);
    match doorbell_usnic::pf_of(object) {
        Some(_) => Fix::run(command, format!("start an agent, {more}")),
        None => Fix::hand(format!(
            "start an agent where the physical function is, `{command}`, {more}"
        )),
    }
}

/// The step `agent`; `error` is why the rail did not open, if it did not.
pub(super) fn step(
    walk: &mut Walk,
    config: &UsnicConfig,
    object: &Object,
    error: Option<&RailError>,
) -> Link {
    match config.control {
        Control::Direct => {
            walk.not_applicable(
                "agent",
                "usnic.control is direct: filters are requested from the function itself",
            );
            return Ok(());
        }
        Control::Proxy => {
            walk.not_applicable(
                "agent",
                "usnic.control is proxy: the process that opens the rail opens the physical function, too",
            );
            return Ok(());
        }
        Control::Agent | Control::Auto => {}
    }
    let Some(socket) = doorbell_usnic::agent_socket(config, object) else {
        return nowhere(walk, config);
    };
    match look(&socket) {
        Socket::There => there(walk, config, object, (&socket, error)),
        Socket::Missing => missing(walk, config, object, &socket),
        Socket::Forbidden(whose) => Err(walk.broken(
            "agent",
            format!(
                "{} is of {}, and this one may not connect",
                socket.display(),
                user(whose)
            ),
            "an agent serves its own user, and root",
            vec![Fix::hand(
                "run as the agent's user, or set usnic.agent to the socket of one of your own",
            )],
        )),
        Socket::File => Err(walk.broken(
            "agent",
            format!("{} is no socket", socket.display()),
            "usnic.agent names another file, or the file was put in its place",
            vec![Fix::hand(
                "set usnic.agent to the agent's socket, or remove the file",
            )],
        )),
    }
}

/// There is a socket: whether an agent listens there, and answers.
fn there(
    walk: &mut Walk,
    config: &UsnicConfig,
    object: &Object,
    (socket, error): (&Path, Option<&RailError>),
) -> Link {
    let shown = socket.display();
    match doorbell_usnic::agent_at(socket) {
        Err(error) if doorbell_usnic::is_other_kind(&error) => {
            return Err(walk.broken(
                "agent",
                format!("{shown} is a socket, but not an agent's"),
                "usnic.agent names another socket",
                vec![Fix::run(
                    "unset DOORBELL_USNIC_AGENT",
                    "leave usnic.agent to itself, or set it to an agent's socket",
                )],
            ));
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Err(walk.broken(
                "agent",
                format!("no process listens at {shown} any more"),
                "the agent that made it was killed",
                vec![start(config, object)],
            ));
        }
        Ok(Some(process)) if doorbell_usnic::is_stopped(process) => {
            return Err(walk.broken(
                "agent",
                format!("process {process} listens at {shown}, and does not answer"),
                "it is stopped, by a signal or in a shell",
                vec![Fix::run(format!("kill -CONT {process}"), "let it go on")],
            ));
        }
        _ => {}
    }
    if let Some(RailError::Unusable { reason, remedy, .. } | RailError::Taken { reason, remedy, .. }) = error
        && reason.starts_with("the agent at ")
        && let Some(cause) = of_agent(reason)
    {
        return Err(walk.broken("agent", reason, cause, vec![Fix::quoted(remedy)]));
    }
    walk.ok("agent", format!("there is the socket of one: {shown}"));
    Ok(())
}

/// The cause of what an agent does, or does not.
fn of_agent(reason: &str) -> Option<&'static str> {
    let causes = [
        (
            "physical function",
            "the physical function, which the agent has, is gone or stopped: the agent itself is well",
        ),
        ("is full", "the agent serves as many processes as it may"),
        ("waiting processes", "the agent is stopped, or busy"),
        ("does not answer", "the agent is stopped, or hangs"),
        (
            "closed the connection",
            "it serves its own user, root, and the group of its --group",
        ),
        ("version", "agent and rail are of different versions"),
    ];
    let found = causes.into_iter().find(|(words, _)| reason.contains(words));
    found.map(|(_, cause)| cause)
}

/// Reports that there is no place where an agent could be.
fn nowhere(walk: &mut Walk, config: &UsnicConfig) -> Link {
    let saw = "there is no physical function here that an agent could own";
    if config.control == Control::Agent {
        return Err(walk.broken(
            "agent",
            saw,
            "the function was handed to this guest without its physical one",
            vec![Fix::hand(
                "set usnic.agent to the agent's socket, or usnic.control to direct",
            )],
        ));
    }
    walk.not_applicable(
        "agent",
        format!("{saw}: filters are requested from the function itself"),
    );
    Ok(())
}

fn missing(walk: &mut Walk, config: &UsnicConfig, object: &Object, socket: &Path) -> Link {
    let saw = format!("there is no socket {}", socket.display());
    if config.control == Control::Agent || config.agent.is_some() {
        return Err(walk.broken(
            "agent",
            saw,
            "no agent runs for this function, or it listens elsewhere (its --socket, here usnic.agent)",
            vec![start(config, object)],
        ));
    }
    walk.note(
        "agent",
        format!(
            "{saw}: filters are requested from the function itself, which a usNIC function may refuse (error 3)"
        ),
        vec![start(config, object)],
    );
    Ok(())
}
