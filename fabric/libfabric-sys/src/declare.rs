//! The macros that declare structures, tables and constants together with the lists of
//! [`layout`](crate::layout).
//!
//! Each declaration has the numbers that the headers' C compiler gives, and asserts them in a constant.

/// Declares structures: the size, and for each field its offset and the API level that brought it.
///
/// `grows` marks a field that is a structure which grew itself.
macro_rules! structures {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident = $size:literal $(, since $from:literal)? {
            $($field:ident: $type:ty = $offset:literal $($grows:ident)? $(, since $since:literal)?;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name {
                $(pub $field: $type,)*
            }

            layout_of!($name, $crate::layout::Kind::Structure, $size, [$($from)?], [
                $($field: $type = $offset, [$($since)?], [$($grows)?];)*
            ]);
        )*

        /// The structures of this module.
        pub(crate) const STRUCTURES: &[$crate::layout::Structure] =
            &[$(<$name as $crate::layout::Layout>::STRUCTURE),*];
    };
}

/// Declares tables of functions: the number of entries with the size, and for each entry its place.
macro_rules! tables {
    ($(
        $(#[$meta:meta])*
        pub table $name:ident = $entries:literal $(, since $from:literal)? {
            $($place:literal: $entry:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $(, since $since:literal)?;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name {
                pub size: usize,
                $(pub $entry: Option<unsafe extern "C" fn($($argument: $type),*) -> $result>,)*
            }

            impl $name {
                /// A table whose entries all refuse: each returns the value of
                /// [`Absent`]($crate::calls::Absent), whatever its arguments.
                pub const REFUSING: Self = {
                    $(
                        #[allow(clippy::too_many_arguments)] // those of C
                        unsafe extern "C" fn $entry($(_: $type),*) -> $result {
                            <$result as $crate::calls::Absent>::ABSENT
                        }
                    )*
                    Self { size: size_of::<Self>(), $($entry: Some($entry),)* }
                };
            }

            layout_of!($name, $crate::layout::Kind::Table, $entries * 8, [$($from)?], [
                size: usize = 0, [], [];
                $($entry: Option<unsafe extern "C" fn($($argument: $type),*) -> $result> = $place * 8, [$($since)?], [];)*
            ]);
        )*

        /// The tables of this module.
        pub(crate) const TABLES: &[$crate::layout::Structure] =
            &[$(<$name as $crate::layout::Layout>::STRUCTURE),*];
    };
}

/// Asserts a layout, and puts it into a constant.
macro_rules! layout_of {
    ($name:ident, $kind:expr, $size:expr, $from:tt, [
        $($field:ident: $type:ty = $offset:expr, [$($since:literal)?], [$($grows:ident)?];)*
    ]) => {
        const _: () = {
            assert!(size_of::<$name>() == $size, concat!("the size of ", stringify!($name)));
            $(assert!(
                std::mem::offset_of!($name, $field) == $offset,
                concat!("the offset of ", stringify!($name), ".", stringify!($field)),
            );)*
        };

        // SAFETY: all fields are numbers, raw pointers, optional functions, or structures and unions of
        // these: a zero of each is valid, and `repr(C)` puts them where the list of the layout has them.
        unsafe impl $crate::layout::Layout for $name {
            const STRUCTURE: $crate::layout::Structure = $crate::layout::Structure {
                name: stringify!($name),
                kind: $kind,
                size: $size,
                align: align_of::<$name>(),
                since: first_level!($from),
                fields: &[$($crate::layout::Field {
                    name: $crate::layout::plain(stringify!($field)),
                    offset: $offset,
                    size: size_of::<$type>(),
                    since: first_level!($from).later(first_level!([$($since)?])),
                    inner: inner_layout!($type, [$($grows)?]),
                },)*],
            };
        }
    };
}

/// The level of a declaration: the one that it names, else the first release.
macro_rules! first_level {
    ([]) => {
        $crate::level::Level::FIRST
    };
    ([$since:literal]) => {
        $crate::level::Level::literal(stringify!($since))
    };
}

/// The layout of a field that grew by itself.
macro_rules! inner_layout {
    ($type:ty, []) => {
        None
    };
    ($type:ty, [grows]) => {
        Some(&<$type as $crate::layout::Layout>::STRUCTURE)
    };
}

/// Declares unions with their sizes. Their members all begin at 0.
macro_rules! unions {
    ($(
        $(#[$meta:meta])*
        pub union $name:ident = $size:literal {
            $($member:ident: $type:ty;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub union $name {
                $(pub $member: $type,)*
            }

            const _: () = assert!(size_of::<$name>() == $size, concat!("the size of ", stringify!($name)));

            impl std::fmt::Debug for $name {
                /// Shows the name alone: which member counts stands elsewhere.
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.debug_struct(stringify!($name)).finish_non_exhaustive()
                }
            }
        )*
    };
}

/// Declares constants by their type, and the list of all.
macro_rules! constants {
    ($($type:ident { $($name:ident = $value:expr;)* })*) => {
        $($(pub const $name: $type = $value;)*)*

        /// The constants of this module.
        pub(crate) const CONSTANTS: &[$crate::layout::Constant] = &[
            $($($crate::layout::Constant { name: stringify!($name), value: $name as u64 },)*)*
        ];
    };
}
