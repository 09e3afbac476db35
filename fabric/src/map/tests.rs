//! Tests of maps: what is shared, what is refused, and that the walls around a map stand.

use super::*;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[test]
fn an_object_is_shared_between_its_maps_and_cannot_be_resized() {
    let object = Object::new("test", 100).unwrap();
    assert_eq!(object.len(), page_size());
    let writer = object.map(Protection::ReadWrite).unwrap();
    let reader = object.map(Protection::ReadOnly).unwrap();
    // SAFETY: the map is at least a page long and writable.
    unsafe { writer.as_ptr().write_volatile(42) };
    // SAFETY: the map is at least a page long and readable.
    assert_eq!(unsafe { reader.as_ptr().read_volatile() }, 42);
    assert!(rustix::fs::ftruncate(&object, 0).is_err());
}

#[test]
fn after_sealing_no_other_process_can_write() {
    let object = Object::new("test", 1).unwrap();
    let _mine = object.map(Protection::ReadWrite).unwrap();
    object.seal_against_new_writers().unwrap();
    assert!(object.map(Protection::ReadWrite).is_err());
    assert!(object.map(Protection::ReadOnly).is_ok());
}

#[test]
fn an_unsealed_or_short_object_of_a_peer_is_refused() {
    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert!(Object::received(unsealed, 1).is_err());
    let short = Object::new("test", 1).unwrap().descriptor;
    assert!(Object::received(short, page_size() + 1).is_err());
    let sparse = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&sparse, 1 << 40).unwrap();
    rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    assert!(Object::received(sparse, 1).is_err());
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert!(Object::received(pipe, 1).is_err());
}

#[test]
fn a_descriptor_of_a_process_is_opened_with_the_same_checks() {
    let object = Object::new("test", 1).unwrap();
    let (me, number) = (std::process::id(), object.as_fd().as_raw_fd());
    let again = Object::open_of(me, number, 1, Protection::ReadWrite).unwrap();
    let ours = Words::of(object.map(Protection::ReadWrite).unwrap().into()).unwrap();
    let theirs = Words::of(again.map(Protection::ReadWrite).unwrap().into()).unwrap();
    ours.get(3).unwrap().store(5, Relaxed);
    assert_eq!(theirs.get(3).unwrap().load(Relaxed), 5);

    assert!(Object::open_of(me, number, page_size() + 1, Protection::ReadOnly).is_err());
    assert!(Object::open_of(me, -1, 1, Protection::ReadOnly).is_err());
    let (_end, pipe) = rustix::pipe::pipe().unwrap();
    assert!(Object::open_of(me, pipe.as_raw_fd(), 1, Protection::ReadOnly).is_err());
    let read_only = Object::open_of(me, number, 1, Protection::ReadOnly).unwrap();
    assert!(read_only.map(Protection::ReadWrite).is_err());
}

#[test]
fn a_file_is_private_and_never_replaces_another() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counters");
    let object = Object::create_file(&path, 10).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (metadata.mode() & 0o777, metadata.len()),
        (0o600, page_size() as u64)
    );
    assert!(object.map(Protection::ReadWrite).is_ok());
    assert!(Object::create_file(&path, 10).is_err());
}

#[test]
fn words_end_where_the_map_ends() {
    let object = Object::new("test", 1).unwrap();
    let words = Words::of(object.map(Protection::ReadWrite).unwrap().into()).unwrap();
    let count = page_size() / 8;
    assert_eq!(words.len(), count);
    assert!(words.get(count - 1).is_some() && words.get(count).is_none());
    assert!(words.get(usize::MAX).is_none() && words.line(usize::MAX).is_none());
    assert!(words.line(count / 8 - 1).is_some() && words.line(count / 8).is_none());
    assert!(words.part(count, 0).is_some() && words.part(1, usize::MAX).is_none());
    assert!(words.word(count).is_none());

    let odd = words.part(1, 17).unwrap();
    assert!(odd.line(0).is_none(), "a line that starts in the middle of one");
    odd.get(16).unwrap().store(9, Relaxed);
    assert_eq!(words.get(17).unwrap().load(Relaxed), 9);
    assert!(odd.get(17).is_none());
}

#[test]
fn words_keep_their_map_and_read_only_maps_have_none() {
    let object = Object::new("test", 1).unwrap();
    let map = Arc::new(object.map(Protection::ReadWrite).unwrap());
    let words = Words::of(Arc::clone(&map)).unwrap();
    let word = words.word(2).unwrap();
    drop((object, words));
    assert_eq!(Arc::strong_count(&map), 2);
    drop(map);
    word.store(1, Relaxed);
    assert_eq!(word.load(Relaxed), 1);

    let object = Object::new("test", 1).unwrap();
    assert!(Words::of(object.map(Protection::ReadOnly).unwrap().into()).is_err());
}

#[test]
fn words_carry_a_message_between_threads() {
    let object = Object::new("test", 1).unwrap();
    let mine = Words::of(object.map(Protection::ReadWrite).unwrap().into()).unwrap();
    let other = Words::of(object.map(Protection::ReadWrite).unwrap().into()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=1000 {
                other.get(1).unwrap().store(round * 3, Relaxed);
                other.line(1).unwrap().0[0].store(round, Release);
                while other.get(16).unwrap().load(Acquire) != round {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=1000 {
            while mine.get(8).unwrap().load(Acquire) != round {
                std::thread::yield_now();
            }
            assert_eq!(mine.get(1).unwrap().load(Relaxed), round * 3);
            mine.get(16).unwrap().store(round, Release);
        }
    });
}

/// Run by [`touching`] in a process of its own: touches one byte at an offset from a map of one page.
#[test]
#[ignore = "dies on purpose; run by the tests of the walls"]
fn touch_in_a_child() {
    let Ok(offset) = std::env::var("DOORBELL_TEST_TOUCH") else {
        return;
    };
    let map = Object::new("test", 1)
        .unwrap()
        .map(Protection::ReadWrite)
        .unwrap();
    for inside in [0, map.len() - 1] {
        // SAFETY: both are bytes of the map.
        unsafe { map.as_ptr().wrapping_add(inside).read_volatile() };
    }
    println!("the inside is fine");
    let at = map.as_ptr().wrapping_offset(offset.parse().unwrap());
    // SAFETY: none outside the map; the process is here to die of it.
    unsafe { at.read_volatile() };
    println!("survived");
}

fn touching(offset: isize) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "map::tests::touch_in_a_child",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("DOORBELL_TEST_TOUCH", offset.to_string())
        .output()
        .unwrap()
}

#[test]
fn a_byte_before_or_behind_a_map_is_a_wall() {
    let page = page_size() as isize;
    let said = |output: &Output, what: &str| String::from_utf8_lossy(&output.stdout).contains(what);
    let inside = touching(page - 1);
    assert!(inside.status.success() && said(&inside, "survived"), "{inside:?}");
    for outside in [-1, -page, page, 2 * page - 1] {
        let output = touching(outside);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGSEGV),
            "{outside}: {output:?}"
        );
        assert!(
            said(&output, "the inside is fine") && !said(&output, "survived"),
            "{output:?}"
        );
    }
}

#[test]
fn a_forked_child_does_not_inherit_a_map() {
    let map = Object::new("test", 1)
        .unwrap()
        .map(Protection::ReadWrite)
        .unwrap();
    // SAFETY: the child only reads one byte and ends: nothing that a fork among threads forbids.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SIGALRM ends a child that hangs, and the assertion below reports it.
        // SAFETY: only a system call.
        unsafe { libc::alarm(60) };
        // SAFETY: the address is not mapped in the child, which is what is being shown.
        unsafe { map.as_ptr().read_volatile() };
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `child` is our own child, and `status` a valid place.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
        "{status:x}"
    );
}

#[test]
fn huge_pages_are_had_whole_or_refused() {
    match Object::huge("test", 1) {
        Err(error) => {
            assert_eq!(error.code(), "memory");
            assert!(error.to_string().contains("huge pages"), "{error}");
        }
        Ok(object) => {
            assert!(object.page() > page_size() && object.len() == object.page());
            let (map, other) = (
                object.map(Protection::ReadWrite).unwrap(),
                object.map(Protection::ReadWrite).unwrap(),
            );
            assert!(map.as_ptr().addr().is_multiple_of(object.page()));
            let words = [map, other].map(|map| Words::of(map.into()).unwrap());
            words[0].get(7).unwrap().store(9, Relaxed);
            assert_eq!(words[1].get(7).unwrap().load(Relaxed), 9);
        }
    }
    assert_eq!(Object::new("test", 1).unwrap().page(), page_size());
}

/// Beyond the limit of file sizes, the system answers an object with SIGXFSZ, which would end the process of
/// a library's user.
#[test]
fn an_object_beyond_the_limit_of_file_sizes_is_an_error() {
    const INSIDE: &str = "DOORBELL_TEST_LIMITED";
    if std::env::var_os(INSIDE).is_some() {
        let error = Object::new("test", 1 << 20).unwrap_err();
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        assert!(error.help().next.contains("ulimit -f"));
        Object::new("test", 1024).unwrap_err();
        return;
    }
    let name = "map::tests::an_object_beyond_the_limit_of_file_sizes_is_an_error";
    let tests = std::env::current_exe().unwrap();
    let script = format!("ulimit -f 1; exec \"$0\" --exact {name} >/dev/null");
    let ended = Command::new("sh")
        .args(["-c", &script])
        .arg(tests)
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(0), "{ended}");
}

/// Pages that `object` has, by the system.
fn pages_of(object: &Object) -> usize {
    let stat = rustix::fs::fstat(object).unwrap();
    usize::try_from(stat.st_blocks).unwrap() * 512 / page_size()
}

#[test]
fn a_growing_object_has_what_was_allocated_of_it() {
    let page = page_size();
    let object = Object::growing("test", 64 * page).unwrap();
    let map = object.map(Protection::ReadWrite).unwrap();
    if pages_of(&object) == 64 {
        // A kernel before 5.14: it has everything.
        return map.allocate(3..4).unwrap();
    }
    object.seal_against_new_writers().unwrap();
    assert_eq!(pages_of(&object), 0, "a map fills in nothing");
    // SAFETY: inside the map, which is writable.
    unsafe { map.as_ptr().wrapping_add(3 * page).write_volatile(7) };
    assert_eq!(pages_of(&object), 1);
    map.allocate(3 * page + 5..5 * page + 1).unwrap();
    assert_eq!(pages_of(&object), 3);
    // SAFETY: as above.
    assert_eq!(unsafe { map.as_ptr().wrapping_add(3 * page).read_volatile() }, 7);
    assert!(map.allocate(63 * page..64 * page + 1).is_err() && map.allocate(4..4).is_err());
    let again = object.as_fd().try_clone_to_owned().unwrap();
    assert!(Object::received(again, 64 * page).is_err());
    let again = object.as_fd().try_clone_to_owned().unwrap();
    assert!(Object::received_growing(again, 64 * page + 1).is_err());
    let again = object.as_fd().try_clone_to_owned().unwrap();
    let theirs = Object::received_growing(again, 64 * page)
        .unwrap()
        .map(Protection::ReadOnly)
        .unwrap();
    assert_eq!(pages_of(&object), 3);
    assert!(
        theirs.allocate(10 * page..11 * page).is_err(),
        "a reader allocates nothing"
    );
    map.allocate(0..64 * page).unwrap();
    assert_eq!(pages_of(&object), 64);
}

#[test]
fn an_object_with_all_its_memory_has_no_more_to_allocate() {
    let object = Object::new("test", 1).unwrap();
    let map = object.map(Protection::ReadWrite).unwrap();
    map.allocate(0..page_size()).unwrap();
    assert!(map.allocate(0..page_size() + 1).is_err());
}
