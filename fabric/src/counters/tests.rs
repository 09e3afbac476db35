//! Tests of counter files: what is written is read, from outside too, and no file can hurt its reader.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

fn plan() -> Plan {
    Plan::new()
        .counter("pml.sent", "messages")
        .gauge("pml.pending", "")
        .line()
        .counter("rail.shm.bytes", "bytes")
        .histogram("pml.wait", "ns")
}

fn create(place: &Place) -> CounterFile {
    CounterFile::create(place, 7, &plan()).unwrap()
}

#[test]
fn what_is_written_is_read() {
    let file = create(&Place::Memory);
    let reader = Reader::open(file.path()).unwrap();
    assert_eq!((reader.rank(), reader.process()), (7, std::process::id()));
    let (sent, pending) = (
        file.counter("pml.sent").unwrap(),
        file.gauge("pml.pending").unwrap(),
    );
    sent.add(2);
    sent.clone().add(3);
    pending.set(9);
    file.counter("rail.shm.bytes").unwrap().set(u64::MAX);
    let snapshot = reader.read().unwrap();
    assert_eq!(snapshot.value("pml.sent"), Some(&Value::Counter(5)));
    assert_eq!(snapshot.value("pml.pending"), Some(&Value::Gauge(9)));
    assert_eq!(snapshot.value("rail.shm.bytes"), Some(&Value::Counter(u64::MAX)));
    assert_eq!(snapshot.value("nothing"), None);
    let kinds: Vec<_> = reader
        .entries()
        .iter()
        .map(|entry| (entry.kind, entry.unit.as_str()))
        .collect();
    let expected = [
        (Kind::Counter, "messages"),
        (Kind::Gauge, ""),
        (Kind::Counter, "bytes"),
        (Kind::Histogram, "ns"),
    ];
    assert_eq!(kinds, expected);
    pending.set(0);
    assert_eq!(
        reader.read().unwrap().value("pml.pending"),
        Some(&Value::Gauge(0))
    );
    assert_eq!((sent.get(), pending.get()), (5, 0));
}

#[test]
fn texts_are_read_and_never_trusted() {
    let file = CounterFile::create(
        &Place::Memory,
        0,
        &Plan::new().counter("before", "").text("way.1.shm.lost"),
    )
    .unwrap();
    let text = file.text("way.1.shm.lost").unwrap();
    assert!(file.text("before").is_err() && file.counter("way.1.shm.lost").is_err());
    let read = || match Reader::open(file.path())
        .unwrap()
        .read()
        .unwrap()
        .value("way.1.shm.lost")
    {
        Some(Value::Text(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(), "");
    let long = format!("{}ü", "x".repeat(TEXT_WORDS * WORD - 1));
    for (given, shown) in [
        ("the peer runs on another host", "the peer runs on another host"),
        ("shorter", "shorter"),
        ("cleared \x1b[2J", "cleared \u{fffd}[2J"),
        // Cut between characters.
        (&long, &long[..TEXT_WORDS * WORD - 1]),
        ("", ""),
    ] {
        text.set(given);
        assert_eq!(read(), shown);
    }
}

#[test]
fn a_histogram_sorts_by_significant_bits() {
    let file = create(&Place::Memory);
    let histogram = file.histogram("pml.wait").unwrap();
    for value in [0, 1, 2, 3, 4, 1000, u64::MAX] {
        histogram.record(value);
    }
    let snapshot = Reader::open(file.path()).unwrap().read().unwrap();
    let Some(Value::Histogram(buckets)) = snapshot.value("pml.wait") else {
        panic!("{snapshot:?}");
    };
    let full: Vec<_> = (0..BUCKETS).filter(|at| buckets.counts[*at] > 0).collect();
    assert_eq!(full, [0, 1, 2, 3, 10, 64]);
    assert_eq!((buckets.count(), buckets.most), (7, u64::MAX));
    assert_eq!(buckets.sum, 1010u64.wrapping_add(u64::MAX));
    let bounds = [0.0, 0.5, 0.8, 1.0, 2.0].map(|quantile| buckets.at_most(quantile).unwrap());
    assert_eq!(bounds, [0, 3, 1023, u64::MAX, u64::MAX]);
}

#[test]
fn an_empty_histogram_has_no_mean_and_no_quantile() {
    let file = create(&Place::Memory);
    let snapshot = Reader::open(file.path()).unwrap().read().unwrap();
    let Some(Value::Histogram(buckets)) = snapshot.value("pml.wait") else {
        panic!("{snapshot:?}");
    };
    assert_eq!(
        (buckets.mean(), buckets.at_most(0.5), buckets.count()),
        (None, None, 0)
    );
}

#[test]
fn the_layout_is_the_documented_one() {
    let file = create(&Place::Memory);
    file.counter("rail.shm.bytes").unwrap().set(0x0102_0304);
    let bytes = std::fs::read(file.path()).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(&bytes[..8], b"dbcount1");
    let numbers = [half(8), half(12), half(16), half(20), half(24)];
    assert_eq!(numbers, [1, 128, 4, 7, std::process::id()]);
    assert_eq!((word(32), word(40)), (64, 64 + 4 * 128 + 8 * (16 + 72)));
    let third = 64 + 2 * 128;
    assert_eq!(&bytes[third..third + 15], b"rail.shm.bytes\0");
    assert_eq!(&bytes[third + 96..third + 102], b"bytes\0");
    assert_eq!((half(third + 112), half(third + 116)), (1, 1));
    let offset = word(third + 120) as usize;
    assert_eq!(
        (offset, offset % 64, word(offset)),
        (64 + 4 * 128 + 64, 0, 0x0102_0304)
    );
}

#[test]
fn a_real_file_is_private_found_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("doorbell");
    let file = create(&Place::Directory(place.clone()));
    let mode = std::fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        std::fs::metadata(&place).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert!(find(Some(&place)).contains(&file.path().to_owned()));
    assert_eq!(Reader::open(file.path()).unwrap().rank(), 7);
    let path = file.path().to_owned();
    drop(file);
    assert!(!path.exists());
    assert!(!find(Some(&place)).contains(&path));
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = CounterFile::create(&Place::Directory(directory.path().into()), 0, &plan()).unwrap_err();
    assert_eq!(error.code(), "file");
    assert!(error.to_string().contains("belongs to you alone"), "{error}");
    let missing = directory.path().join("no/such");
    assert!(CounterFile::create(&Place::Directory(missing), 0, &plan()).is_err());
}

#[test]
fn the_file_in_memory_is_found_through_proc() {
    let file = create(&Place::Memory);
    let second = create(&Place::Memory);
    let found = find(None);
    assert!(found.iter().any(|path| path == file.path()) && found.iter().any(|path| path == second.path()));
    assert_eq!(Reader::open(file.path()).unwrap().process(), std::process::id());
    drop(file);
}

#[test]
fn handles_outlive_their_file() {
    let file = create(&Place::Memory);
    let (sent, wait) = (
        file.counter("pml.sent").unwrap(),
        file.histogram("pml.wait").unwrap(),
    );
    drop(file);
    sent.add(1);
    wait.record(1);
    assert_eq!(sent.get(), 1);
}

#[test]
fn a_plan_that_cannot_be_is_refused() {
    let refused = |plan: Plan| CounterFile::create(&Place::Memory, 0, &plan).unwrap_err().code();
    assert_eq!(refused(Plan::new().counter("a", "").gauge("a", "")), "misuse");
    assert_eq!(refused(Plan::new().counter("", "")), "misuse");
    assert_eq!(refused(Plan::new().counter(&"a".repeat(97), "")), "misuse");
    assert_eq!(refused(Plan::new().counter("a", &"b".repeat(17))), "misuse");
    assert_eq!(refused(Plan::new().counter("a\u{1b}[2J", "")), "misuse");
    let many = (0..=ENTRIES_MAX).fold(Plan::new(), |plan, at| plan.counter(&at.to_string(), ""));
    assert_eq!(refused(many), "misuse");
    let file = create(&Place::Memory);
    assert!(file.counter("pml.pending").is_err() && file.gauge("nothing").is_err());
    assert!(CounterFile::create(&Place::Memory, 0, &Plan::new()).is_ok());
}

/// The bytes of a good file, without what lies behind its values.
fn good() -> Vec<u8> {
    let file = create(&Place::Memory);
    file.counter("pml.sent").unwrap().add(1);
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes.truncate(u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize);
    bytes
}

fn open(bytes: &[u8]) -> Result<Snapshot, RailError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Reader::open(file.path())?.read()
}

#[test]
fn files_that_lie_are_refused_with_a_reason() {
    let good = good();
    assert!(open(&good).is_ok());
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        open(&changed)
    };
    let row = 64;
    let lies: [(usize, &[u8], &str); 16] = [
        (0, b"x", "the magic word"),
        (8, &[2], "the version"),
        (12, &[127], "the size of a row"),
        (16, &[0xff; 4], "the number of rows"),
        (16, &[200, 0, 0, 0], "more rows than there is room"),
        (32, &[0xff; 8], "the table's place"),
        (32, &[8, 0], "the table inside the header"),
        (40, &[0xff; 8], "the length"),
        (row, &[0], "an empty name"),
        (row, b"\x1b[2J", "a name that would clear the screen"),
        (row + 60, b"x", "something behind a name"),
        (row + 96, &[0xff], "a unit that is no text"),
        (row + 112, &[9], "the kind"),
        (row + 116, &[2], "the number of words"),
        (row + 120, &[0xff; 8], "an offset beyond the end"),
        (row + 120, &[8, 0], "an offset inside the header"),
    ];
    for (at, bytes, what) in lies {
        let error = with(at, bytes).expect_err(what);
        assert_eq!(error.code(), "bad-file", "{what}: {error}");
    }
    let mut twice = good.clone();
    twice.copy_within(64..64 + 96, 64 + 128);
    assert_eq!(open(&twice).unwrap_err().code(), "bad-file");
}

#[test]
fn what_is_not_a_file_is_refused() {
    for path in ["/dev/null", "/dev/zero", "/", "/proc/self/fd/none"] {
        assert!(Reader::open(Path::new(path)).is_err(), "{path}");
    }
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(Reader::open(&pipe).is_err());
}

#[test]
fn a_file_cut_short_while_open_is_an_error_and_no_signal() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), good()).unwrap();
    let reader = Reader::open(file.path()).unwrap();
    std::fs::write(file.path(), b"").unwrap();
    assert_eq!(reader.read().unwrap_err().code(), "bad-file");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever bytes: an answer, and only values that lie inside.
    #[test]
    fn no_file_hurts_its_reader(
        cut in 0usize..1400,
        changes in prop::collection::vec((0usize..600, any::<u8>()), 0..8),
    ) {
        static GOOD: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = GOOD.get_or_init(good).clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        if let Ok(snapshot) = open(&bytes) {
            prop_assert!(snapshot.readings.len() <= ENTRIES_MAX);
        }
    }

    /// Each value lands in the bucket whose bounds hold it, and no quantile is below a value that it covers.
    #[test]
    fn buckets_hold_their_values(values in prop::collection::vec(any::<u64>(), 1..100)) {
        let file = create(&Place::Memory);
        let histogram = file.histogram("pml.wait").unwrap();
        values.iter().for_each(|value| histogram.record(*value));
        let snapshot = Reader::open(file.path()).unwrap().read().unwrap();
        let Some(Value::Histogram(buckets)) = snapshot.value("pml.wait") else { unreachable!() };
        let mut sorted = values.clone();
        sorted.sort_unstable();
        prop_assert_eq!(buckets.count(), values.len() as u64);
        prop_assert_eq!(buckets.most, *sorted.last().unwrap());
        for (at, value) in sorted.iter().enumerate() {
            let quantile = (at + 1) as f64 / sorted.len() as f64;
            prop_assert!(buckets.at_most(quantile).unwrap() >= *value);
        }
    }
}
