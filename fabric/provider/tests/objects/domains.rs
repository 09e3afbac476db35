//! Fabrics and domains: opened many times, closed in order, and after a fork.

use std::ptr;

use libfabric_sys::*;

use crate::alone::{run, run_with};
use crate::opened::{Opened, open, try_open};
use crate::set;

#[test]
fn a_fabric_and_a_domain_are_closed_in_order_only() {
    run(
        "domains::a_fabric_and_a_domain_are_closed_in_order_only",
        |library| {
            let opened = Opened::any(library);
            // SAFETY: the fabric is open.
            assert_eq!(unsafe { fi_close(opened.fabric.fid()) }, -FI_EBUSY);
            let queue = opened.queue(0, 0, FI_WAIT_NONE);
            assert_eq!(opened.domain.close(), 0);
            // SAFETY: as above.
            assert_eq!(unsafe { fi_close(opened.fabric.fid()) }, -FI_EBUSY);
            assert_eq!(queue.close(), 0);
            assert_eq!(opened.fabric.close(), 0);
        },
    );
}

#[test]
fn several_domains_are_opened_from_one_fabric() {
    run("domains::several_domains_are_opened_from_one_fabric", |library| {
        let opened = Opened::any(library);
        let entry = opened.info.as_ptr().cast_mut();
        let more: Vec<_> = (0..8)
            .map(|_| {
                // SAFETY: the fabric is open, and the entry is of its provider.
                open("fi_domain", |to| unsafe {
                    fi_domain(opened.fabric.0, entry, to, ptr::null_mut())
                })
            })
            .collect();
        assert_eq!(more.len(), 8);
    });
}

#[test]
fn a_hundred_lives_leave_no_descriptor() {
    run("domains::a_hundred_lives_leave_no_descriptor", |library| {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        drop(Opened::any(library));
        let before = count();
        for _ in 0..100 {
            drop(Opened::any(library));
        }
        assert_eq!(count(), before);
    });
}

/// The descriptors of this process.
fn descriptors() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

#[test]
fn no_descriptor_passes_an_exec() {
    run("domains::no_descriptor_passes_an_exec", |library| {
        let before = descriptors();
        let opened = Opened::any(library);
        let events = opened.queue(0, 0, FI_WAIT_FD);
        let mut attributes = fi_cq_attr {
            wait_obj: FI_WAIT_FD,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let queue = open::<fid_cq>("fi_cq_open", |to| unsafe {
            fi_cq_open(opened.domain.0, &raw mut attributes, to, ptr::null_mut())
        });
        let mut count = 0;
        for descriptor in descriptors() {
            // SAFETY: it reads the flags of a descriptor, or fails: that of the folder is closed again.
            let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
            if before.contains(&descriptor) || flags < 0 {
                continue;
            }
            let target = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
            assert_eq!(flags, libc::FD_CLOEXEC, "{target:?}");
            count += 1;
        }
        assert!(count > 3, "the domain has descriptors: {count}");
        drop((events, queue));
    });
}

#[test]
fn wrong_arguments_are_refused() {
    run("domains::wrong_arguments_are_refused", |library| {
        let opened = Opened::any(library);
        let (fabric, null) = (opened.fabric.0, ptr::null_mut());
        // SAFETY: the fabric is open; no entry is given.
        let none = try_open::<fid_domain>(|to| unsafe { fi_domain(fabric, ptr::null_mut(), to, null) });
        assert_eq!(none.unwrap_err(), -FI_EINVAL);
        let entry = opened.info.as_ptr().cast_mut();
        // SAFETY: the fabric is open; flags that none knows.
        let flags = try_open::<fid_domain>(|to| unsafe { fi_domain2(fabric, entry, to, 1 << 40, null) });
        assert_eq!(flags.unwrap_err(), -FI_EBADFLAGS);
        // SAFETY: both are open; a fabric is no event queue.
        let bound = unsafe { fi_domain_bind(opened.domain.0, opened.fabric.fid(), FI_REG_MR) };
        assert_eq!(bound, -FI_EINVAL);
    });
}

/// Runs something in a child, and returns its exit status.
fn in_child(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls the provider, writes nothing of the parent's, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = work();
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_of_fork_is_kept_out_and_may_close_and_the_parent_goes_on() {
    let test = "domains::a_child_of_fork_is_kept_out_and_may_close_and_the_parent_goes_on";
    let printed = run_with(test, &[], |library| {
        let opened = Opened::any(library);
        let queue = opened.queue(0, FI_WRITE, FI_WAIT_FD);
        let memory = [0_u8; 8];
        let register = |key| {
            let mut mr = ptr::null_mut();
            // SAFETY: the domain is open, and the memory stays.
            unsafe {
                fi_mr_reg(
                    opened.domain.0,
                    memory.as_ptr().cast(),
                    8,
                    FI_REMOTE_READ,
                    0,
                    key,
                    0,
                    &raw mut mr,
                    ptr::null_mut(),
                )
            }
        };
        let code = in_child(|| {
            let refused = register(1) == -FI_EOPBADSTATE && register(2) == -FI_EOPBADSTATE;
            // SAFETY: open in the parent.
            let closed = unsafe { fi_close(queue.fid()) };
            // SAFETY: as above.
            let closed = closed | unsafe { fi_close(opened.domain.fid()) };
            i32::from(!refused) | i32::from(closed != 0) << 1
        });
        assert_eq!(code, 0);
        // What a child opens is its own.
        let code = in_child(|| {
            let own = Opened::any(library);
            i32::from(own.domain.close() != 0)
        });
        assert_eq!(code, 0);
        assert_eq!(register(3), 0, "the parent goes on");
        std::mem::forget(opened);
    });
    if let Some(printed) = printed {
        let lines = printed
            .lines()
            .filter(|line| line.contains("opened before a fork"));
        assert_eq!(lines.count(), 1, "{printed}");
    }
}

#[test]
fn a_port_has_one_domain_and_an_endpoint_no_other_port() {
    let test = "domains::a_port_has_one_domain_and_an_endpoint_no_other_port";
    run(test, |library| {
        let port = std::ffi::CString::new((10_000 + std::process::id() % 40_000).to_string()).unwrap();
        let ask = |format, port: &std::ffi::CStr| {
            let mut hints = crate::opened::hints(&library);
            set!(hints, addr_format = format);
            let node = Some(c"127.0.0.1");
            library
                .getinfo(library.level(), node, Some(port), FI_SOURCE, Some(&hints))
                .unwrap()
        };
        let first = ask(FI_SOCKADDR_IN, &port);
        let attributes = crate::get!(first, fabric_attr);
        let null = ptr::null_mut();
        // SAFETY: the attributes are the library's.
        let fabric = open("fi_fabric", |to| unsafe { library.fabric(attributes, to, null) });
        let domain = |info: &InfoList| {
            let entry = info.as_ptr().cast_mut();
            // SAFETY: the fabric is open, and the entry is of its provider.
            try_open::<fid_domain>(|to| unsafe { fi_domain(fabric.0, entry, to, null) })
        };
        let opened = domain(&first).unwrap();
        assert_eq!(domain(&first).unwrap_err(), -FI_EADDRINUSE);
        // In our format the names of both are exchanged: the second one has a random name.
        let exchanged = domain(&ask(FI_FORMAT_UNSPEC, &port)).unwrap();
        assert_eq!(exchanged.close(), 0);
        let endpoint = |info: &InfoList| {
            let entry = info.as_ptr().cast_mut();
            // SAFETY: the domain is open, and the entry is of its provider.
            try_open::<fid_ep>(|to| unsafe { fi_endpoint(opened.0, entry, to, null) })
        };
        assert_eq!(
            endpoint(&ask(FI_SOCKADDR_IN, c"9")).unwrap_err(),
            -FI_EADDRNOTAVAIL
        );
        let endpoint = endpoint(&first).unwrap();
        assert_eq!(endpoint.close(), 0);
        // With its end the port is free.
        assert_eq!(opened.close(), 0);
        assert_eq!(domain(&first).unwrap().close(), 0);
    });
}

#[test]
fn an_entry_of_other_rails_opens_no_domain() {
    run("domains::an_entry_of_other_rails_opens_no_domain", |library| {
        let opened = Opened::any(library);
        let mut copy = crate::opened::hints(&library);
        set!(copy, domain_attr.name = crate::opened::text(c"shm+udp:nope"));
        let entry = copy.as_mut_ptr();
        let null = ptr::null_mut();
        // SAFETY: the fabric is open, and the entry has all its attributes.
        let refused = try_open::<fid_domain>(|to| unsafe { fi_domain(opened.fabric.0, entry, to, null) });
        assert_eq!(refused.unwrap_err(), -FI_EINVAL);
    });
}

#[test]
fn a_domain_without_descriptors_is_the_systems_number_and_its_advice_is_given_once() {
    let test = "domains::a_domain_without_descriptors_is_the_systems_number_and_its_advice_is_given_once";
    let printed = run_with(test, &[], |library| {
        let opened = Opened::any(library);
        let entry = opened.info.as_ptr().cast_mut();
        let open = descriptors();
        // The lowest one that is free: fewer than `more` are available from there on.
        let used = (0..).find(|number| !open.contains(number)).unwrap() as u64;
        for more in 0..8 {
            let limit = libc::rlimit {
                rlim_cur: used + more,
                rlim_max: 4096,
            };
            // SAFETY: a structure of this function.
            let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            assert_eq!(result, 0);
            // SAFETY: both are open.
            let domain = try_open::<fid_domain>(|to| unsafe {
                fi_domain(opened.fabric.0, entry, to, ptr::null_mut())
            });
            if let Err(number) = domain {
                assert_eq!(number, -FI_EMFILE, "{more}");
            }
        }
    });
    if let Some(printed) = printed {
        let lines: Vec<&str> = printed
            .lines()
            .filter(|line| line.contains("fi_domain: "))
            .collect();
        assert!(lines.len() > 2, "{printed}");
        for line in lines {
            assert_eq!(line.matches("ulimit -n").count(), 1, "{line}");
        }
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_with_the_most_that_can() {
    let test = "domains::sizes_that_cannot_be_are_refused_with_the_most_that_can";
    let printed = run_with(test, &[], |library| {
        let opened = Opened::any(library);
        let (domain, null) = (opened.domain.0, ptr::null_mut());
        for (size, is_possible) in [(1 << 40, false), (usize::MAX, false), (1 << 20, true)] {
            let expected = if is_possible { None } else { Some(-FI_EINVAL) };
            let mut cq = fi_cq_attr {
                size,
                ..Layout::zeroed()
            };
            // SAFETY: the domain is open, here and below.
            let queue = try_open::<fid_cq>(|to| unsafe { fi_cq_open(domain, &raw mut cq, to, null) });
            assert_eq!(queue.err(), expected, "cq {size}");
            let mut av = fi_av_attr {
                count: size,
                ..Layout::zeroed()
            };
            // SAFETY: as above.
            let vector = try_open::<fid_av>(|to| unsafe { fi_av_open(domain, &raw mut av, to, null) });
            assert_eq!(vector.err(), expected, "av {size}");
            let mut eq = fi_eq_attr {
                size,
                ..Layout::zeroed()
            };
            // SAFETY: the fabric is open.
            let events =
                try_open::<fid_eq>(|to| unsafe { fi_eq_open(opened.fabric.0, &raw mut eq, to, null) });
            assert_eq!(events.err(), expected, "eq {size}");
        }
    });
    if let Some(printed) = printed {
        for line in [
            "fi_cq_open: a size of 1099511627776 is refused: at most 16777216",
            "fi_av_open: a count of 1099511627776 is refused: at most 16777216",
            "fi_eq_open: a size of 1099511627776 is refused: at most 1048576",
        ] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
    }
}
