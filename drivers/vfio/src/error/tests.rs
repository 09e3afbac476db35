use super::*;
use std::collections::HashSet;

/// One of each variant.
fn one_of_each() -> Vec<Error> {
    let bdf: Bdf = "0000:01:10.0".parse().unwrap();
    let device = || "device".to_owned();
    let source = || io::Error::other("the system's word");
    let memory = || RailError::memory("step", "device", 1, source());
    vec![
        Error::BadAddress { given: device() },
        Error::NoDevice { bdf },
        Error::NoIommu { bdf, group: None },
        Error::NotBound {
            bdf,
            driver: None,
            interface: None,
        },
        Error::NotViable {
            bdf,
            group: 7,
            others: vec![(bdf, "igb".to_owned())],
            parent: None,
        },
        Error::NoFile {
            path: "/dev/vfio/7".into(),
            fix: "do this, and then do that".to_owned(),
        },
        Error::Forbidden {
            path: "/dev/vfio/7".into(),
            owner: 0,
            group: 0,
            mode: 0o600,
            user: 1000,
        },
        Error::WrongVersion,
        Error::NoType1,
        Error::Busy {
            path: "/dev/vfio/7".into(),
            holder: None,
        },
        Error::NotAttached {
            bdf,
            step: "step",
            source: source(),
        },
        Error::Memlock {
            needed: 1 << 20,
            limit: 1 << 16,
            locked: 0,
        },
        Error::Unreadable {
            device: device(),
            what: device(),
            found: device(),
        },
        Error::refused("device", "step", source()),
        Error::OutOfRegion {
            device: device(),
            region: RegionIndex::CONFIG,
            at: 1,
            length: 2,
            reason: "are not inside",
        },
        Error::NoInterrupt {
            device: device(),
            kind: Irq::Msix,
            has: 1,
            wanted: 2,
        },
        Error::NoBusAddresses {
            device: device(),
            wanted: 1,
        },
        Error::Memory(memory()),
        Error::NoHugePages {
            needed: 1,
            source: memory(),
        },
        Error::Silent {
            device: device(),
            step: "step",
            waited: Duration::from_secs(1),
        },
        Error::Gone {
            device: device(),
            step: "step",
            source: Some(source()),
        },
        Error::hostile("device", "breaks a rule"),
        Error::system("step", "device", source()),
    ]
}

#[test]
fn each_has_a_name_of_its_own_and_one_sentence_with_a_fix() {
    let mut codes = HashSet::new();
    for error in one_of_each() {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(
            error.code().bytes().all(plain) && codes.insert(error.code()),
            "{}",
            error.code()
        );
        let (reason, fix, whole) = (error.reason(), error.fix(), error.to_string());
        assert!(reason.len() > 20 && fix.len() > 20, "{whole}");
        assert!(!whole.contains('\n') && !whole.contains("  "), "{whole}");
        assert!(!reason.ends_with('.') && !fix.ends_with('.'), "{whole}");
        if std::error::Error::source(&error).is_some() {
            assert!(reason.contains("the system's word"), "{whole}");
        }
    }
    assert_eq!(codes.len(), 23);
}

#[test]
fn a_rails_error_has_the_same_text() {
    for error in one_of_each() {
        let (reason, fix) = (error.reason(), error.fix());
        let of_rail = error.of_rail("igbvf:0000:01:10.0").to_string();
        assert!(of_rail.contains(&reason), "{of_rail}");
        // Memory errors of fabric have their own advice.
        assert!(of_rail.contains(&fix) || of_rail == reason, "{of_rail}");
    }
}

#[test]
fn the_systems_reason_decides_the_fix() {
    let fix = |number| Error::refused("device", "step", io::Error::from_raw_os_error(number)).fix();
    let numbers = [
        libc::ENOMEM,
        libc::EMFILE,
        libc::EPERM,
        libc::EBUSY,
        libc::ENODEV,
        libc::EXDEV,
    ];
    let fixes: HashSet<_> = numbers.into_iter().map(fix).collect();
    assert_eq!(fixes.len(), numbers.len());
    assert!(fix(libc::ENOMEM).contains("ulimit -l"));
}
