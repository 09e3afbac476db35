//! The files by which clients find the service: created without destroying another service's, and removed at
//! the end if they are still ours.

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

/// Timeout of connecting to the local port that a port file names.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Files created by the service, which are removed when this is dropped, unless they were replaced meanwhile.
#[derive(Debug, Default)]
pub(crate) struct CreatedFiles(Vec<(PathBuf, Identity)>);

/// Identifies a file independently of its name: device and inode.
type Identity = (u64, u64);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl CreatedFiles {
    fn note(&mut self, path: &Path) -> Result<(), ServeError> {
        let identity = identity(path).map_err(failed("inspect", path))?;
        self.0.push((path.to_owned(), identity));
        Ok(())
    }
}

impl Drop for CreatedFiles {
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

/// Creates a Unix socket that listens at `path`, replacing that of a dead service.
///
/// Its mode is set before it listens, so that no client connects with the mode that the umask gives it.
pub(crate) fn socket(path: &Path, mode: u32, made: &mut CreatedFiles) -> Result<UnixListener, ServeError> {
    if path.as_os_str().len() > SOCKET_MAX {
        return Err(ServeError::TooLong {
            path: path.to_owned(),
        });
    }
    let address =
        SocketAddrUnix::new(path).map_err(|error| failed("address a socket", path)(error.into()))?;
    clear_socket(path, "socket")?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed("create a socket for", path)(error.into()))?;
    match bind(&socket, &address) {
        Ok(()) => made.note(path)?,
        // Another process was quicker.
        Err(Errno::ADDRINUSE) => {
            return Err(in_use(path));
        }
        Err(error) => return Err(failed("bind the socket", path)(error.into())),
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o777))
        .map_err(|error| failed("set the mode of", path)(error.into()))?;
    listen(&socket, BACKLOG).map_err(|error| failed("listen on", path)(error.into()))?;
    Ok(socket.into())
}

/// Creates a symbolic link to `target`, replacing a link or the socket of a dead service, but not a link to
/// another live service.
pub(super) fn alias(link: &Path, target: &Path, made: &mut CreatedFiles) -> Result<(), ServeError> {
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
    symlink(target, link).map_err(failed("create the symbolic link", link))?;
    made.note(link)
}

/// Returns the path of `target` as seen from the folder of `link`, where a link is resolved. A relative path
/// of this process would resolve elsewhere.
fn seen_from(link: &Path, target: &Path) -> io::Result<PathBuf> {
    match target.file_name() {
        _ if target.is_absolute() => Ok(target.to_owned()),
        Some(name) if link.parent() == target.parent() => Ok(name.into()),
        _ => std::path::absolute(target),
    }
}

/// Writes the port file atomically.
pub(super) fn port(path: &Path, port: u16, made: &mut CreatedFiles) -> Result<(), ServeError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = path.with_file_name(name);
    let write = || {
        // Remove what an earlier process with the same number left behind.
        let _ = fs::remove_file(&draft);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&draft)?;
        writeln!(file, "{port}")?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        fs::rename(&draft, path)
    };
    write().map_err(failed("write the port to", path))?;
    made.note(path)
}

/// Removes a port file whose port has no listener: a dead service left it, and clients would try it before
/// the socket.
pub(super) fn forget_port(path: &Path, alias: &Path) {
    let text = fs::read_to_string(path);
    let Some(port) = text.ok().and_then(|text| text.trim().parse::<u16>().ok()) else {
        return;
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let knocked = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
    if knocked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(path);
        if fs::symlink_metadata(alias).is_ok_and(|found| found.is_symlink()) {
            let _ = fs::remove_file(alias);
        }
    }
}

/// Removes a socket or link in the way, unless it can be connected to.
fn clear_socket(path: &Path, what: &'static str) -> Result<(), ServeError> {
    let path = path.to_owned();
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("inspect", &path)(error)),
        Ok(found) if !found.file_type().is_socket() => Err(ServeError::InTheWay { path, what }),
        Ok(_) if is_dead(&path) => fs::remove_file(&path).map_err(failed("replace", &path)),
        Ok(_) => Err(in_use(&path)),
    }
}

/// Whether it is certain that no process listens.
fn is_dead(path: &Path) -> bool {
    matches!(try_connect(path), Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Connects to a socket without blocking: a full backlog is a sign of life.
fn try_connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn in_use(path: &Path) -> ServeError {
    let socket = try_connect(path).ok();
    ServeError::InUse {
        path: path.to_owned(),
        holder: socket.and_then(holder),
    }
}

/// Returns the process that listens at the other end (unix(7): `SO_PEERCRED`), if it is visible from this
/// namespace.
fn holder(socket: OwnedFd) -> Option<Holder> {
    // A process outside our PID namespace is reported as 0, which tokio accepts and rustix does not.
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
