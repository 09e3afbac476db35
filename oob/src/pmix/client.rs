//! The calls of libpmix with Rust types. They block as long as the library does; the caller has to bound them
//! ([`crate::launch::pmix`]).

use std::ffi::{CString, c_char, c_int};
use std::mem::offset_of;
use std::ptr;

use super::abi::{self, App, Bytes, Data, Info, Proc, Status, Value};
use super::library::{Library, text_of};
use crate::launch::{LONGEST_VALUE, LaunchError};

/// A process that is connected to its PMIx server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    library: Library,
    namespace: [c_char; abi::NAMESPACE],
}

/// Processes to be started.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    /// The variables as `NAME=VALUE`, in addition to those of the launcher.
    pub(crate) variables: Vec<String>,
    pub(crate) processes: u32,
    pub(crate) host: Option<String>,
}

/// A value that was read.
#[derive(Debug)]
pub(crate) enum Got {
    /// A value of bytes.
    Bytes(Vec<u8>),
    /// A value that is a number.
    Number(u32),
    /// There is no such value.
    Absent,
}

impl Client {
    /// Connects to the server; returns the rank in the job too.
    pub(crate) fn init(library: &str) -> Result<(Self, u32), LaunchError> {
        let library = Library::load(library)?;
        let mut process = Proc {
            namespace: [0; abi::NAMESPACE],
            rank: 0,
        };
        // SAFETY: the process is ours and as large as the header defines; no infos are passed.
        let status = unsafe { (library.init)(&mut process, ptr::null_mut(), 0) };
        let client = Self {
            library,
            namespace: process.namespace,
        };
        client.judge("PMIx_Init", status)?;
        Ok((client, process.rank))
    }

    /// Returns the name of the job.
    pub(crate) fn namespace(&self) -> String {
        let bytes = self.namespace.iter().map(|c| *c as u8);
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Puts bytes for all ranks, and commits them to the server.
    pub(crate) fn put(&self, key: &str, value: &[u8]) -> Result<(), LaunchError> {
        let key = c_key(key)?;
        let mut value = Value {
            kind: abi::BYTE_OBJECT,
            data: Data {
                bytes: Bytes {
                    bytes: value.as_ptr().cast_mut().cast(),
                    size: value.len(),
                },
            },
        };
        // SAFETY: key and value live through the call, and the library copies both; it does not write to the
        // bytes.
        let status = unsafe { (self.library.put)(abi::GLOBAL, key.as_ptr(), &mut value) };
        self.judge("PMIx_Put", status)?;
        // SAFETY: no arguments; the client is initialised.
        let status = unsafe { (self.library.commit)() };
        self.judge("PMIx_Commit", status)
    }

    /// Waits for all ranks of the job; afterwards all values are available everywhere.
    pub(crate) fn fence(&self) -> Result<(), LaunchError> {
        let mut collect = Info {
            key: [0; abi::KEY],
            flags: 0,
            value: Value {
                kind: abi::BOOL,
                data: Data { words: [0; 3] },
            },
        };
        collect.value.data.flag = true;
        collect.key = c_name(abi::COLLECT_DATA);
        // SAFETY: no processes are named, which means all; the info lives through the call.
        let status = unsafe { (self.library.fence)(ptr::null(), 0, &collect, 1) };
        self.judge("PMIx_Fence", status)
    }

    /// Returns a value that `rank` has put.
    pub(crate) fn get(&self, rank: u32, key: &str) -> Result<Got, LaunchError> {
        self.get_of(rank, key)
    }

    /// Returns the size of the job.
    pub(crate) fn size(&self) -> Result<Got, LaunchError> {
        self.get_of(abi::WILDCARD, abi::JOB_SIZE)
    }

    /// Returns the index of this process on this host.
    pub(crate) fn local_rank(&self, rank: u32) -> Result<Got, LaunchError> {
        self.get_of(rank, abi::LOCAL_RANK)
    }

    /// Returns the number of processes of the job on this host.
    pub(crate) fn local_size(&self) -> Result<Got, LaunchError> {
        self.get_of(abi::WILDCARD, abi::LOCAL_SIZE)
    }

    fn get_of(&self, rank: u32, key: &str) -> Result<Got, LaunchError> {
        let key = c_key(key)?;
        let process = Proc {
            namespace: self.namespace,
            rank,
        };
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: process and key live through the call; no infos; the library writes one pointer.
        let status = unsafe { (self.library.get)(&process, key.as_ptr(), ptr::null(), 0, &mut value) };
        if status == abi::NOT_FOUND {
            return Ok(Got::Absent);
        }
        self.judge("PMIx_Get", status)?;
        if value.is_null() {
            return Ok(Got::Absent);
        }
        let got = read(value);
        // SAFETY: the library made it by malloc for the caller, who frees it; `read` has freed what it
        // pointed to.
        unsafe { libc::free(value.cast()) };
        got
    }

    /// Starts processes of a program.
    pub(crate) fn spawn(&self, order: &Order) -> Result<(), LaunchError> {
        let command = c_text(&order.program)?;
        let args = order.args.iter().map(|arg| c_text(arg));
        let args: Vec<CString> = args.collect::<Result<_, _>>()?;
        let variables = order.variables.iter().map(|variable| c_text(variable));
        let variables: Vec<CString> = variables.collect::<Result<_, _>>()?;
        let mut argv = pointers(std::iter::once(&command).chain(&args));
        let mut env = pointers(&variables);
        let host = order.host.as_deref().map(c_text).transpose()?;
        let mut info = host.as_ref().map(|host| Info {
            key: c_name(abi::HOST),
            flags: 0,
            value: Value {
                kind: abi::STRING,
                data: Data {
                    string: host.as_ptr().cast_mut(),
                },
            },
        });
        let app = App {
            command: command.as_ptr().cast_mut(),
            argv: argv.as_mut_ptr(),
            env: env.as_mut_ptr(),
            folder: ptr::null_mut(),
            processes: c_int::try_from(order.processes).unwrap_or(c_int::MAX),
            info: info.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            infos: usize::from(host.is_some()),
        };
        let mut namespace: [c_char; abi::NAMESPACE] = [0; abi::NAMESPACE];
        // SAFETY: one app, whose texts and lists, ended by null, live through the call; the library copies
        // what it needs, and writes a name no longer than the buffer.
        let status = unsafe { (self.library.spawn)(ptr::null(), 0, &app, 1, namespace.as_mut_ptr()) };
        self.judge("PMIx_Spawn", status)
    }

    /// Requests the end of the job.
    pub(crate) fn abort(&self, code: u8, text: &str) -> Result<(), LaunchError> {
        let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the text lives through the call; no processes are named, which means all of the job.
        let status = unsafe { (self.library.abort)(i32::from(code), text.as_ptr(), ptr::null_mut(), 0) };
        self.judge("PMIx_Abort", status)
    }

    /// Ends the connection regularly.
    pub(crate) fn finalize(&self) -> Result<(), LaunchError> {
        // SAFETY: no infos; the client is initialised, and the caller does this once.
        let status = unsafe { (self.library.finalize)(ptr::null(), 0) };
        self.judge("PMIx_Finalize", status)
    }

    fn judge(&self, call: &'static str, status: Status) -> Result<(), LaunchError> {
        if status == abi::SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number, and gives a text that lasts.
        let text = unsafe { (self.library.error_string)(status) };
        let remedy = match status {
            abi::UNREACHABLE => {
                "the server cannot be reached: start the program under mpirun, PRRTE or `srun --mpi=pmix`, as the same user"
            }
            _ => "check the launcher's output",
        };
        Err(LaunchError::Pmix {
            call,
            status,
            text: text_of(text).unwrap_or_else(|| "no text".to_owned()),
            remedy,
        })
    }
}

/// Returns a standard name as an array for an info.
fn c_name(name: &[u8]) -> [c_char; abi::KEY] {
    let mut key = [0; abi::KEY];
    for (to, from) in key.iter_mut().zip(name) {
        *to = *from as c_char;
    }
    key
}

/// Returns a null-terminated list of strings, which have to outlive it.
fn pointers<'t>(texts: impl IntoIterator<Item = &'t CString>) -> Vec<*mut c_char> {
    let texts = texts.into_iter().map(|text| text.as_ptr().cast_mut());
    texts.chain(std::iter::once(ptr::null_mut())).collect()
}

fn c_text(text: &str) -> Result<CString, LaunchError> {
    CString::new(text).map_err(|_| LaunchError::NotSpawned {
        kind: crate::launch::Kind::Pmix,
        reason: format!("`{}` contains a zero byte", text.escape_debug()),
    })
}

fn c_key(key: &str) -> Result<CString, LaunchError> {
    let fits = CString::new(key).ok().filter(|_| key.len() < abi::KEY);
    fits.ok_or_else(|| LaunchError::Key { key: key.to_owned() })
}

/// Copies a value that the library allocated, and frees what it points to. `value` is not null.
fn read(value: *mut Value) -> Result<Got, LaunchError> {
    // No reference to the whole: an older version's value is one word shorter.
    let data = value.wrapping_byte_add(offset_of!(Value, data));
    // SAFETY: the library gave the value, whose kind stands first, for a call that succeeded.
    let kind = unsafe { value.cast::<u16>().read() };
    match kind {
        abi::UINT16 => {
            // SAFETY: as above; data of this kind is such a number.
            let number = unsafe { data.cast::<u16>().read() };
            Ok(Got::Number(u32::from(number)))
        }
        abi::UINT32 => {
            // SAFETY: as above.
            let number = unsafe { data.cast::<u32>().read() };
            Ok(Got::Number(number))
        }
        abi::BYTE_OBJECT => {
            // SAFETY: as above; two words, which every version's value has.
            let bytes = unsafe { data.cast::<Bytes>().read() };
            let copied = copy_of(bytes);
            // SAFETY: the library made it by malloc for the caller; null is allowed.
            unsafe { libc::free(bytes.bytes.cast()) };
            copied.map(Got::Bytes)
        }
        // The memory that it points to leaks: a few bytes, once, before an error.
        kind => Err(LaunchError::Pmix {
            call: "PMIx_Get",
            status: abi::SUCCESS,
            text: format!("received a value of type {kind}, but bytes or a number were expected"),
            remedy: "does every rank run the same doorbell?",
        }),
    }
}

fn copy_of(bytes: Bytes) -> Result<Vec<u8>, LaunchError> {
    if bytes.bytes.is_null() || bytes.size == 0 {
        return Ok(Vec::new());
    }
    if bytes.size > LONGEST_VALUE {
        return Err(LaunchError::TooLong {
            kind: crate::launch::Kind::Pmix,
            what: "a value",
            length: bytes.size,
            limit: LONGEST_VALUE,
        });
    }
    // SAFETY: the library set the number of bytes that are there, and they are ours until they are freed.
    let slice = unsafe { std::slice::from_raw_parts(bytes.bytes.cast::<u8>(), bytes.size) };
    Ok(slice.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: u16, data: Data) -> Result<Got, LaunchError> {
        let mut value = Value { kind, data };
        read(&mut value)
    }

    fn malloced(text: &[u8]) -> Bytes {
        // SAFETY: any size may be requested.
        let bytes = unsafe { libc::malloc(text.len()) }.cast::<u8>();
        assert!(!bytes.is_null());
        // SAFETY: just allocated, of this length, and not shared.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), bytes, text.len()) };
        Bytes {
            bytes: bytes.cast(),
            size: text.len(),
        }
    }

    #[test]
    fn values_are_copied_by_their_kind() {
        let number = |kind, data| match made(kind, data) {
            Ok(Got::Number(number)) => number,
            other => panic!("{other:?}"),
        };
        assert_eq!(number(abi::UINT16, Data { uint16: 7 }), 7);
        assert_eq!(number(abi::UINT32, Data { uint32: 70_000 }), 70_000);
        let bytes = Data {
            bytes: malloced(b"some"),
        };
        assert!(matches!(made(abi::BYTE_OBJECT, bytes), Ok(Got::Bytes(bytes)) if bytes == b"some"));
        let none = Data { words: [0; 3] };
        assert!(matches!(made(abi::BYTE_OBJECT, none), Ok(Got::Bytes(bytes)) if bytes.is_empty()));
    }

    #[test]
    fn other_kinds_and_lengths_that_cannot_be_are_refused() {
        let other = made(3, Data { words: [0; 3] }).unwrap_err().to_string();
        assert!(other.contains("type 3"), "{other}");
        let mut long = malloced(b"x");
        long.size = LONGEST_VALUE + 1;
        let error = made(abi::BYTE_OBJECT, Data { bytes: long }).unwrap_err();
        assert_eq!(error.code(), "launch.value");
    }

    #[test]
    fn keys_are_texts_of_c() {
        assert!(c_key("doorbell.hello").is_ok());
        assert_eq!(c_key("a\0b").unwrap_err().code(), "launch.value");
        assert_eq!(c_key(&"x".repeat(600)).unwrap_err().code(), "launch.value");
    }
}
