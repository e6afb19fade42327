//! The memory available to this process.
//!
//! It is the system's available memory, limited by the process's control group and its ancestors. A
//! container, a Slurm job or a systemd unit kills a process beyond its limit, however much memory the system
//! has free. The page cache of a group counts against its limit but is dropped before any process is killed,
//! so it counts as available.
//!
//! The allocator retains freed memory for a while, and it counts as used until it is returned. Before
//! refusing something or setting a bound, call [`available_for`], which returns it first.

use std::{
    fs::read_to_string,
    num::NonZeroUsize,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

/// The name of the processor, as Linux reports it; elsewhere empty.
pub fn cpu() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

/// The processor and the cores that this process may use: `AMD EPYC 9554, 8 cores`.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = format!("{cores} core{}", if cores == 1 { "" } else { "s" });
    match cpu() {
        name if name.is_empty() => cores,
        name => format!("{name}, {cores}"),
    }
}

static TRIM: OnceLock<fn()> = OnceLock::new();

/// Sets the function that returns the allocator's unused memory to the system when memory is short. The code
/// that chooses the allocator sets it; the first call counts.
pub fn set_allocator_trim(trim: fn()) {
    _ = TRIM.set(trim);
}

/// Returns freed memory that the allocator retains to the system.
pub fn trim_allocator() {
    if let Some(trim) = TRIM.get() {
        trim();
    }
}

/// The memory of a device with its own, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    pub free: usize,
    pub total: usize,
}

/// Bytes that this process can still allocate; none if the system does not report them.
pub fn available() -> Option<usize> {
    available_in(Path::new("/"))
}

/// Like [`available`]. If the result is below `bytes`, first returns the allocator's unused memory.
pub(super) fn available_for(bytes: usize) -> Option<usize> {
    enough(bytes, available, trim_allocator)
}

fn enough(bytes: usize, read: impl Fn() -> Option<usize>, trim: impl FnOnce()) -> Option<usize> {
    let available = read()?;
    if available >= bytes {
        return Some(available);
    }
    trim();
    read()
}

/// Like [`available`], for a system whose files are below this folder.
fn available_in(root: &Path) -> Option<usize> {
    let groups = groups(root).into_iter().filter_map(|group| group.available());
    Some(groups.fold(free_in(root)?, usize::min))
}

/// Bytes that the system reports as free or reclaimable.
fn free_in(root: &Path) -> Option<usize> {
    let info = read_to_string(root.join("proc/meminfo")).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

/// A control group with a memory limit.
struct Group {
    folder: PathBuf,
    /// Version 2 of the control group files; otherwise version 1.
    unified: bool,
}

impl Group {
    /// Bytes its processes may still allocate; none if it sets no limit.
    fn available(&self) -> Option<usize> {
        let number = |name: &str| read_to_string(self.folder.join(name)).ok()?.trim().parse::<usize>().ok();
        let (limit, used) = match self.unified {
            // Beyond `high` no process is killed, but all are throttled until usage shrinks.
            true => (number("memory.max").into_iter().chain(number("memory.high")).min()?, "memory.current"),
            false => (number("memory.limit_in_bytes")?, "memory.usage_in_bytes"),
        };
        let used = number(used)?.saturating_sub(self.cached());
        Some(limit.saturating_sub(used))
    }

    /// Bytes of page cache of its processes and of the groups below it.
    fn cached(&self) -> usize {
        let stat = read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let prefix = if self.unified { "" } else { "total_" };
        let file = |line: &str| {
            let (name, bytes) = line.strip_prefix(prefix)?.split_once(' ')?;
            let counts = ["inactive_file", "active_file"].contains(&name);
            bytes.parse::<usize>().ok().filter(|_| counts)
        };
        stat.lines().filter_map(file).sum()
    }
}

/// The control groups of this process, each with its visible ancestors.
fn groups(root: &Path) -> Vec<Group> {
    let read = |name: &str| read_to_string(root.join(name)).unwrap_or_default();
    let (memberships, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut groups = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((top, point)) = mounts.lines().find_map(|line| mount(line, unified)) else { continue };
        let point = root.join(point.strip_prefix('/').unwrap_or(point));
        // The mount may be a group below the root group. A path outside it names a group that is not visible;
        // the mounted group then represents it.
        let below = Path::new(path).strip_prefix(top).unwrap_or(Path::new(""));
        let below: PathBuf =
            below.components().take_while(|part| matches!(part, Component::Normal(_))).collect();
        let folders = below.ancestors().map(|below| point.join(below));
        groups.extend(folders.map(|folder| Group { folder, unified }));
    }
    groups
}

/// Parses a line of `mountinfo` that mounts the groups of version 2, or the memory groups of version 1.
/// Returns the group and the mount point.
fn mount(line: &str, unified: bool) -> Option<(&str, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1).unwrap_or_default());
    let fits = match unified {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    let mut mount = mount.split(' ').skip(3);
    Some((mount.next()?, mount.next()?)).filter(|_| fits)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MIB: usize = 1 << 20;

    /// A system with 1000 MiB free, and these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = format!("MemTotal: 1 kB\nMemAvailable:  {} kB\n", 1000 * 1024);
        for (path, text) in files.iter().chain(&[("proc/meminfo", meminfo.as_str())]) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";

    /// The numbers are in MiB.
    fn check(files: &[(&str, &str)], expected: usize) {
        let files: Vec<(&str, String)> = files
            .iter()
            .map(|(path, text)| {
                let scaled = |word: &str| match word.parse::<usize>() {
                    Ok(number) if !path.starts_with("proc") => (number * MIB).to_string(),
                    _ => word.to_owned(),
                };
                let line = |line: &str| line.split(' ').map(scaled).collect::<Vec<_>>().join(" ") + "\n";
                (*path, text.lines().map(line).collect())
            })
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        assert_eq!(available_in(system(&files).path()), Some(expected * MIB));
    }

    #[test]
    fn without_control_groups_the_free_memory_of_the_system_is_available() {
        check(&[], 1000);
        check(&[("proc/self/cgroup", "0::/\n"), ("proc/self/mountinfo", UNIFIED)], 1000);
        assert_eq!(available_in(Path::new("/nowhere")), None);
        assert!(available().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn the_page_cache_of_a_container_counts_as_available() {
        let of = |max, stat| {
            [
                ("proc/self/cgroup", "0::/\n"),
                ("proc/self/mountinfo", UNIFIED),
                ("sys/fs/cgroup/memory.max", max),
                ("sys/fs/cgroup/memory.current", "790"),
                ("sys/fs/cgroup/memory.stat", stat),
            ]
        };
        check(&of("800", "anon 90\nfile 700\ninactive_file 500\nactive_file 200\nshmem 0"), 710);
        check(&of("800", "anon 790"), 10);
        check(&of("max", "anon 790"), 1000);
        check(&of("700", "anon 790"), 0);
    }

    #[test]
    fn the_smallest_limit_of_all_ancestors_applies() {
        let unit = "sys/fs/cgroup/user.slice/run.scope/";
        let files = |name: &str| format!("{unit}{name}");
        let (max, current, high) = (files("memory.max"), files("memory.current"), files("memory.high"));
        let slice = ("sys/fs/cgroup/user.slice/memory.max", "max");
        let mut tree = vec![
            ("proc/self/cgroup", "0::/user.slice/run.scope\n"),
            ("proc/self/mountinfo", UNIFIED),
            (&max, "500"),
            (&current, "100"),
            ("sys/fs/cgroup/user.slice/memory.current", "150"),
        ];
        check(&[&tree[..], &[slice]].concat(), 400);
        check(&[&tree[..], &[("sys/fs/cgroup/user.slice/memory.max", "300")]].concat(), 150);
        tree.push((&high, "350"));
        check(&[&tree[..], &[slice]].concat(), 250);
    }

    #[test]
    fn limits_of_cgroup_version_1_apply_wherever_they_are_mounted() {
        let limits = |at: &str| {
            ["limit_in_bytes 600", "usage_in_bytes 450", "stat total_inactive_file 100\ninactive_file 7"].map(
                |file| {
                    let (name, text) = file.split_once(' ').unwrap();
                    (format!("{at}/memory.{name}"), text.to_owned())
                },
            )
        };
        let nested = limits("sys/fs/cgroup/memory/slurm/job_7");
        let mounted = limits("sys/fs/cgroup/memory");
        let whole = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let part = "35 31 0:32 /docker/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        for (membership, mounts, files) in [
            ("9:cpu:/\n4:memory:/slurm/job_7\n0::/\n", whole, &nested),
            ("4:hugetlb,memory:/docker/c0ffee\n", part, &mounted),
            ("4:memory:/docker/c0ffee/../elsewhere\n", part, &mounted),
            ("4:memory:/elsewhere\n", part, &mounted),
        ] {
            let mut tree = vec![("proc/self/cgroup", membership), ("proc/self/mountinfo", mounts)];
            tree.extend(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
            check(&tree, 250);
        }
    }

    #[test]
    fn the_allocator_is_trimmed_only_if_memory_is_short() {
        let (available, trims) = (Cell::new(Some(100)), Cell::new(0));
        let trim = || {
            trims.set(trims.get() + 1);
            available.set(Some(400));
        };
        assert_eq!((enough(100, || available.get(), trim), trims.get()), (Some(100), 0));
        assert_eq!((enough(300, || available.get(), trim), trims.get()), (Some(400), 1));
        available.set(None);
        assert_eq!((enough(300, || available.get(), trim), trims.get()), (None, 1));
    }
}
