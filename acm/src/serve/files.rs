//! The files by which clients find the service: made so that nobody else's is lost, removed when they are still ours.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use tokio::net::UnixStream;
use tokio::runtime::Builder;

use super::error::{Holder, SOCKET_MAX, ServeError};
use super::listener::BACKLOG;

/// How long a port that a file names may take to say that it is there: it is one of this host.
const KNOCK: Duration = Duration::from_millis(500);

/// Files that the service made. They go with it, unless something else stands there by then.
#[derive(Debug, Default)]
pub(crate) struct Made(Vec<(PathBuf, Identity)>);

/// A file, whatever its name.
type Identity = (u64, u64);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Made {
    fn note(&mut self, path: &Path) -> Result<(), ServeError> {
        let identity = identity(path).map_err(failed("look at", path))?;
        self.0.push((path.to_owned(), identity));
        Ok(())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for (path, known) in self.0.drain(..).rev() {
            if identity(&path).is_ok_and(|found| found == known) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.to_owned();
    move |source| ServeError::File { step, path, source }
}

/// A Unix socket that listens at `path`; that of a service which is dead is replaced.
///
/// It has its mode before it listens: nobody comes in by the one that the process's mask gives it.
pub(crate) fn socket(path: &Path, mode: u32, made: &mut Made) -> Result<UnixListener, ServeError> {
    if path.as_os_str().len() > SOCKET_MAX {
        return Err(ServeError::TooLong {
            path: path.to_owned(),
        });
    }
    let address = SocketAddrUnix::new(path).map_err(|error| failed("name a socket", path)(error.into()))?;
    clear_socket(path, "socket")?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed("open a socket for", path)(error.into()))?;
    match bind(&socket, &address) {
        Ok(()) => made.note(path)?,
        // Somebody was quicker.
        Err(Errno::ADDRINUSE) => {
            return Err(in_use(path));
        }
        Err(error) => return Err(failed("make the socket", path)(error.into())),
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o777))
        .map_err(|error| failed("set the mode of", path)(error.into()))?;
    listen(&socket, BACKLOG).map_err(|error| failed("listen on", path)(error.into()))?;
    Ok(socket.into())
}

/// A symbolic link to `target`; one that is there, or the socket of a service which is dead, is replaced. One that leads
/// to another service which lives is not.
pub(super) fn alias(link: &Path, target: &Path, made: &mut Made) -> Result<(), ServeError> {
    let target = &seen_from(link, target).map_err(failed("find the target of", link))?;
    match fs::symlink_metadata(link) {
        Ok(found)
            if found.is_symlink()
                && fs::read_link(link).is_ok_and(|old| old != *target)
                && !is_dead(link) =>
        {
            return Err(in_use(link));
        }
        Ok(found) if found.is_symlink() => fs::remove_file(link).map_err(failed("replace", link))?,
        _ => clear_socket(link, "symbolic link")?,
    }
    symlink(target, link).map_err(failed("make the symbolic link", link))?;
    made.note(link)
}

/// What leads to `target` from the folder of `link`, where a link is read: a path from the root does from everywhere, one from
/// this process's folder from nowhere else.
fn seen_from(link: &Path, target: &Path) -> io::Result<PathBuf> {
    match target.file_name() {
        _ if target.is_absolute() => Ok(target.to_owned()),
        Some(name) if link.parent() == target.parent() => Ok(name.into()),
        _ => std::path::absolute(target),
    }
}

/// A file with the port in it, which is there as a whole or not at all.
pub(super) fn port(path: &Path, port: u16, made: &mut Made) -> Result<(), ServeError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = path.with_file_name(name);
    let write = || {
        // What a process with the same number left behind.
        let _ = fs::remove_file(&draft);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&draft)?;
        writeln!(file, "{port}")?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        fs::rename(&draft, path)
    };
    write().map_err(failed("write the port to", path))?;
    made.note(path)
}

/// Removes a port file that names a port where nobody listens: a service that is gone left it, and its clients would go
/// there before they look for a socket.
pub(super) fn forget_port(path: &Path, alias: &Path) {
    let text = fs::read_to_string(path);
    let Some(port) = text.ok().and_then(|text| text.trim().parse::<u16>().ok()) else {
        return;
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let knocked = TcpStream::connect_timeout(&address, KNOCK);
    if knocked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(path);
        if fs::symlink_metadata(alias).is_ok_and(|found| found.is_symlink()) {
            let _ = fs::remove_file(alias);
        }
    }
}

/// Makes room for a socket, or a link: whoever can be connected to keeps it.
fn clear_socket(path: &Path, what: &'static str) -> Result<(), ServeError> {
    let path = path.to_owned();
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("look at", &path)(error)),
        Ok(found) if !found.file_type().is_socket() => Err(ServeError::InTheWay { path, what }),
        Ok(_) if is_dead(&path) => fs::remove_file(&path).map_err(failed("replace", &path)),
        Ok(_) => Err(in_use(&path)),
    }
}

/// Whether surely nobody listens.
fn is_dead(path: &Path) -> bool {
    matches!(knock(path), Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Connects to a socket. Waits for nothing: a service whose queue is full is not dead.
fn knock(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn in_use(path: &Path) -> ServeError {
    let socket = knock(path).ok();
    ServeError::InUse {
        path: path.to_owned(),
        holder: socket.and_then(holder),
    }
}

/// Who listened at the other end of a socket (unix(7): `SO_PEERCRED`); none where it cannot be seen from here.
fn holder(socket: OwnedFd) -> Option<Holder> {
    // A process that our namespace does not have is told as 0, which tokio takes and rustix does not.
    let runtime = Builder::new_current_thread().enable_io().build().ok()?;
    let within = runtime.enter();
    let stream = UnixStream::from_std(socket.into()).ok()?;
    let pid = stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)?;
    drop((stream, within));
    let name = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(text.trim_end().to_owned())
    };
    let known = name(&pid.to_string());
    Some(Holder {
        pid,
        is_like_us: known.is_some() && known == name("self"),
        name: known,
    })
}
