//! Finished rows of stages: `rows/<family>/<key>.log`.
//!
//! Keys that differ only in which rows they have (how many episodes, of which tasks) form a family. A row
//! with a given name has the same content in all of them. While a stage runs, its rows go to the log of its
//! key. Once its result is durable they are in the artifact, and `<key>.done` lists their names. If the
//! artifact does not hold them as recorded, `<key>.done` is the log itself. So an interrupted stage computes
//! only the missing rows, and so does a stage of the same family that needs more rows.
//!
//! A sample that is drawn again has other rows under the same names. So the log of a later draw begins with a
//! frame without a name that holds the draw's number, and a file of another draw counts as empty.
//!
//! A frame is: length of the name (u32, little endian), length of the row (u32), the name, the row, and the
//! first eight bytes of the blake3 hash of all that, in rows of a later draw with the draw's number (u64) behind it.
//! Each frame is appended with one write. Bytes that are no frame are skipped up to the next whole one, so damage
//! costs the rows that it hits, and a torn tail one. Rows are not synced: a killed process loses nothing, a power
//! failure may lose the newest rows.
//!
//! Several processes may record rows of one key at once, each into a log of its own: `<key>.<part>.log`.
//!
//! A stage has at most one checkpoint, `<key>.checkpoint`: a file in the stage's own format and of any size, which the
//! next one replaces. It ends with the log. `<key>.checkpoint.sums` has the digests of the last ones, the newest first: it is
//! written before the checkpoint is put in place, so that one that was killed in between is still known.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use mcprl_base::{error::if_found, hash::Digest};
use parking_lot::Mutex;

use super::{
    Store, StoreError, die, failpoint, reached, replace_file,
    tree::{file_digest, modified},
};

const CHECK: usize = 8;
/// Bytes that a name may have for a frame to be found behind damage.
const NAME_BYTES: usize = 1 << 16;
/// How many checkpoints are known by their digests.
const SUMS: usize = 4;
/// The name of the frame that holds the number of the draw. No row has it.
const DRAW: &str = "";

/// The rows of one draw of a stage key.
pub struct RowLog {
    /// Folder of the family.
    folder: PathBuf,
    key: Digest,
    draw: u64,
    /// Of the log that this process writes; empty for the one without a part.
    part: String,
    file: Mutex<Option<File>>,
    damage: Mutex<BTreeSet<String>>,
}

/// Rows of a family under other keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FamilyRows {
    pub rows: BTreeMap<String, Vec<u8>>,
    /// Names of rows in finished results, by key.
    pub finished: BTreeMap<Digest, BTreeSet<String>>,
}

/// What to keep of a log once the result is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remainder {
    Nothing,
    /// The artifact holds the rows.
    Names,
    Rows,
}

impl Store {
    /// `draw`: the number of the sample's draw, 0 for the first one.
    pub fn rows(&self, family: &Digest, key: &Digest, draw: u64) -> RowLog {
        let folder = self.families().join(family.to_string());
        let (part, file, damage) = (String::new(), Mutex::default(), Mutex::default());
        RowLog { folder, key: *key, draw, part, file, damage }
    }

    pub(super) fn families(&self) -> PathBuf {
        self.root.join("rows")
    }
}

impl RowLog {
    /// Records into the log of this part, which no other process writes; without a name, into the first one.
    pub fn part(self, part: &str) -> Self {
        Self { part: if part.is_empty() { String::new() } else { format!("{part}.") }, ..self }
    }

    /// The log that this process writes.
    fn log(&self) -> PathBuf {
        self.beside(&format!("{}log", self.part))
    }

    /// All logs of the key.
    fn logs(&self) -> Result<Vec<PathBuf>, StoreError> {
        self.files("log")
    }

    /// All files of the family.
    fn family(&self) -> Result<Vec<PathBuf>, StoreError> {
        let entries = if_found(std::fs::read_dir(&self.folder));
        let entries = entries.map_err(|cause| StoreError::reading(&self.folder, cause))?;
        Ok(entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect())
    }

    /// The key's files with this extension.
    fn files(&self, extension: &str) -> Result<Vec<PathBuf>, StoreError> {
        let is_one = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
        let is_own = |path: &PathBuf| is_one(path) && key(path) == Some(self.key);
        let mut files: Vec<_> = self.family()?.into_iter().filter(is_own).collect();
        files.sort_unstable();
        Ok(files)
    }

    fn beside(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.key))
    }

    /// The number of the draw that the rows belong to.
    pub fn draw(&self) -> u64 {
        self.draw
    }

    /// Every row recorded so far. The last one with a name wins.
    pub fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let mut rows = self.all()?;
        rows.retain(|_, row| !row.is_empty());
        Ok(rows)
    }

    /// The rows of this draw, of all processes.
    fn all(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let mut rows = BTreeMap::new();
        for log in self.logs()? {
            rows.extend(self.rows_of(&log)?.rows);
        }
        Ok(rows)
    }

    /// A sentence for each damaged file that was read since the last call.
    pub fn damage(&self) -> Vec<String> {
        std::mem::take(&mut *self.damage.lock()).into_iter().collect()
    }

    /// A file's rows of this draw.
    fn rows_of(&self, path: &Path) -> Result<Parsed, StoreError> {
        let parsed = parse(&read(path)?, self.draw);
        if parsed.damaged > 0 {
            let (bytes, path) = (parsed.damaged, path.display());
            let sentence =
                format!("{bytes} bytes of {path} are damaged, and the rows in them are made again");
            self.damage.lock().insert(sentence);
        }
        Ok(parsed)
    }

    /// Rows of this draw of results and interrupted stages of the same family, and of earlier results of this key.
    pub fn relatives(&self) -> Result<FamilyRows, StoreError> {
        let mut relatives = FamilyRows::default();
        for path in self.family()? {
            let is_done = match path.extension().and_then(|extension| extension.to_str()) {
                Some("log") => false,
                Some("done") => true,
                _ => continue,
            };
            let Some(key) = key(&path).filter(|key| is_done || *key != self.key) else { continue };
            let Parsed { rows, draw, .. } = self.rows_of(&path)?;
            if draw != self.draw {
                continue;
            }
            if is_done {
                relatives.finished.entry(key).or_default().extend(rows.keys().cloned());
            }
            relatives.rows.extend(rows.into_iter().filter(|(_, row)| !row.is_empty()));
        }
        Ok(relatives)
    }

    /// Appends one row. An empty row means that its content is stored elsewhere.
    pub fn record(&self, name: &str, row: &[u8]) -> Result<(), StoreError> {
        let path = self.log();
        let writing = |cause| StoreError::writing(&path, cause);
        let frame = frame(name, row, self.draw).map_err(writing)?;
        let mut slot = self.file.lock();
        let file = match &mut *slot {
            Some(file) => file,
            None => slot.insert(self.open()?),
        };
        if reached("rows::torn") {
            _ = file.write_all(&frame[..frame.len() / 2]);
            die();
        }
        file.write_all(&frame).map_err(writing)?;
        failpoint("rows::recorded");
        Ok(())
    }

    /// The file of the last checkpoint, if there is one and its bytes are those that were written. Reads it.
    pub fn checkpoint(&self) -> Option<PathBuf> {
        let path = self.checkpoint_path();
        // A link is none of ours.
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            return None;
        }
        let digest = file_digest(&path).ok()?.to_string();
        self.sums().contains(&digest).then_some(path)
    }

    /// The digests of the last checkpoints.
    fn sums(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.sums_path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn sums_path(&self) -> PathBuf {
        self.beside(&format!("{}.sums", self.checkpoint_name()))
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.beside(&self.checkpoint_name())
    }

    /// Another draw does not continue from it.
    fn checkpoint_name(&self) -> String {
        match self.draw {
            0 => "checkpoint".into(),
            draw => format!("checkpoint{draw}"),
        }
    }

    /// Makes the file that `write` writes the checkpoint. If it fails or the process is killed, the previous one stays.
    pub fn replace_checkpoint<E: From<StoreError>>(
        &self,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let (new, path) = (self.beside(&format!("{}new", self.part)), self.checkpoint_path());
        let writing = |cause| StoreError::writing(&path, cause);
        std::fs::create_dir_all(&self.folder).map_err(writing)?;
        write(&new)?;
        let mut sums = self.sums();
        sums.insert(0, file_digest(&new)?.to_string());
        sums.truncate(SUMS);
        replace_file(&self.sums_path(), 0o666, (sums.join("\n") + "\n").as_bytes()).map_err(writing)?;
        std::fs::rename(&new, &path).map_err(writing)?;
        failpoint("rows::checkpoint");
        Ok(())
    }

    /// Deletes the rows and the checkpoint if they were recorded before the file at `path` was written, because that file
    /// covers them.
    pub fn forget_before(&self, path: &Path) -> Result<(), StoreError> {
        let logs = self.logs()?.iter().filter_map(|log| modified(log)).max();
        let recorded = logs.max(modified(&self.checkpoint_path()));
        match recorded.zip(modified(path)) {
            Some((rows, other)) if rows <= other => self.end(Remainder::Nothing),
            _ => Ok(()),
        }
    }

    /// Ends the log once the result is durable, and keeps `remainder` of it.
    pub fn end(&self, remainder: Remainder) -> Result<(), StoreError> {
        *self.file.lock() = None;
        remove(&self.checkpoint_path())?;
        remove(&self.sums_path())?;
        // Those of processes that were killed while they wrote them included.
        self.files("new")?.iter().try_for_each(|path| remove(path))?;
        let (logs, done) = (self.logs()?, self.beside("done"));
        let rows = if remainder == Remainder::Nothing { BTreeMap::new() } else { self.all()? };
        if !rows.is_empty() {
            let writing = |cause| StoreError::writing(&done, cause);
            match (remainder, logs.as_slice()) {
                (Remainder::Rows, [log]) => return std::fs::rename(log, &done).map_err(writing),
                _ => {
                    let kept = |row: Vec<u8>| if remainder == Remainder::Rows { row } else { Vec::new() };
                    let draw = (self.draw > 0).then(|| frame(DRAW, self.draw.to_string().as_bytes(), 0));
                    let rows = rows.into_iter().map(|(name, row)| frame(&name, &kept(row), self.draw));
                    let frames: std::io::Result<Vec<_>> = draw.into_iter().chain(rows).collect();
                    // If torn, it lists fewer rows than there are.
                    std::fs::write(&done, frames.map_err(writing)?.concat()).map_err(writing)?;
                }
            }
        }
        logs.iter().try_for_each(|log| remove(log))?;
        // Fails if other keys have files there.
        _ = std::fs::remove_dir(&self.folder);
        Ok(())
    }

    /// Opens for appending, after cutting off a torn tail, or all rows of another draw.
    fn open(&self) -> Result<File, StoreError> {
        let path = self.log();
        let writing = |cause| StoreError::writing(&path, cause);
        std::fs::create_dir_all(&self.folder).map_err(writing)?;
        let whole = self.rows_of(&path)?.length;
        let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(writing)?;
        file.set_len(whole as u64).map_err(writing)?;
        if whole == 0 && self.draw > 0 {
            let draw = frame(DRAW, self.draw.to_string().as_bytes(), 0).map_err(writing)?;
            file.write_all(&draw).map_err(writing)?;
        }
        Ok(file)
    }
}

/// The key in the name of a file: what is before the first dot.
pub(super) fn key(path: &Path) -> Option<Digest> {
    path.file_name()?.to_str()?.split('.').next()?.parse().ok()
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    let bytes = if_found(std::fs::read(path)).map_err(|cause| StoreError::reading(path, cause))?;
    Ok(bytes.unwrap_or_default())
}

fn remove(path: &Path) -> Result<(), StoreError> {
    if_found(std::fs::remove_file(path)).map(drop).map_err(|cause| StoreError::writing(path, cause))
}

fn frame(name: &str, row: &[u8], draw: u64) -> std::io::Result<Vec<u8>> {
    let length = |bytes: &[u8]| {
        u32::try_from(bytes.len()).map_err(|_| std::io::Error::other("a row is limited to 4 GiB"))
    };
    let mut frame = Vec::with_capacity(8 + name.len() + row.len() + CHECK);
    frame.extend(length(name.as_bytes())?.to_le_bytes());
    frame.extend(length(row)?.to_le_bytes());
    frame.extend(name.as_bytes());
    frame.extend(row);
    let check = check(&frame, draw);
    frame.extend(check);
    Ok(frame)
}

/// With the draw in it, a row is never one of another draw, also where the frame with the draw's number is damaged.
fn check(frame: &[u8], draw: u64) -> [u8; CHECK] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(frame);
    if draw > 0 {
        hasher.update(&draw.to_le_bytes());
    }
    let mut check = [0; CHECK];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK]);
    check
}

/// What a file has of a draw.
#[derive(Default)]
struct Parsed {
    rows: BTreeMap<String, Vec<u8>>,
    /// The draw that the file is of.
    draw: u64,
    /// Where the last whole frame ends. 0 in a file of another draw.
    length: usize,
    /// Bytes that are skipped because they are no frame.
    damaged: usize,
}

/// The rows of a file's whole frames, if it is of this draw.
fn parse(bytes: &[u8], draw: u64) -> Parsed {
    let begin = match first(bytes, 0) {
        Some((name, number, length)) if name == DRAW => {
            Some((std::str::from_utf8(&number).ok().and_then(|number| number.parse().ok()), length))
        }
        Some(_) => Some((Some(0), 0)),
        None => None,
    };
    let (found, length) = begin.unwrap_or((Some(draw), 0));
    if found != Some(draw) {
        return Parsed { draw: found.unwrap_or_default(), ..Parsed::default() };
    }
    let mut parsed = Parsed { draw, length, ..Parsed::default() };
    loop {
        let rest = &bytes[parsed.length..];
        let Some((damaged, (name, row, length))) = next(rest, draw) else {
            // A frame that is shorter than it says is a torn tail.
            if extent(rest) == Some(rest.len()) {
                parsed.damaged += rest.len();
            }
            return parsed;
        };
        parsed.rows.insert(name, row);
        parsed.damaged += damaged;
        parsed.length += damaged + length;
    }
}

/// A name, its row, and the length of their frame.
type Frame = (String, Vec<u8>, usize);

/// How often a damaged log is hashed while the next frame is looked for. Chance takes a fraction; what asks for more was written
/// to do so.
const HASHED: usize = 32;

/// The next whole frame, and how many bytes stand before it.
fn next(bytes: &[u8], draw: u64) -> Option<(usize, Frame)> {
    let left = Cell::new(bytes.len().saturating_mul(HASHED));
    let at = |start: usize| {
        let bytes = bytes.get(start..)?;
        left.set(left.get().checked_sub(extent(bytes).filter(|extent| *extent <= bytes.len())?)?);
        Some((start, first(bytes, draw)?))
    };
    let is_named = |start: &usize| {
        let length = length(&bytes[*start..], 0).filter(|length| (1..NAME_BYTES).contains(length));
        let name = length.and_then(|length| bytes.get(start + 8..start + 8 + length));
        name.is_some_and(|name| std::str::from_utf8(name).is_ok())
    };
    // Behind a damaged frame whose lengths are right, else anywhere.
    at(0).or_else(|| at(extent(bytes)?)).or_else(|| (1..bytes.len()).filter(is_named).find_map(at))
}

/// The number that stands there.
fn length(bytes: &[u8], at: usize) -> Option<usize> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

/// The length of the first frame, as it says.
fn extent(bytes: &[u8]) -> Option<usize> {
    (8 + CHECK).checked_add(length(bytes, 0)?)?.checked_add(length(bytes, 4)?)
}

fn first(bytes: &[u8], draw: u64) -> Option<Frame> {
    let frame = bytes.get(..extent(bytes)?)?;
    let (content, found) = frame.split_at(frame.len() - CHECK);
    if found != check(content, draw) {
        return None;
    }
    let (name, row) = content[8..].split_at_checked(length(bytes, 0)?)?;
    Some((std::str::from_utf8(name).ok()?.to_owned(), row.to_vec(), frame.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: &[u8] = b"family";

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.prepare().unwrap();
        (folder, store)
    }

    fn rows(store: &Store, key: &str) -> RowLog {
        drawn(store, key, 0)
    }

    fn drawn(store: &Store, key: &str, draw: u64) -> RowLog {
        store.rows(&Digest::of(FAMILY), &Digest::of(key.as_bytes()), draw)
    }

    #[test]
    fn a_log_whose_bytes_claim_many_long_frames_is_read_in_time() {
        let (_folder, store) = store();
        let log = rows(&store, "key");
        log.record("a", b"1").unwrap();
        let claims = [1_u32.to_le_bytes(), 0x0020_0000_u32.to_le_bytes()].concat().repeat(1 << 19);
        OpenOptions::new().append(true).open(log.log()).unwrap().write_all(&claims).unwrap();
        assert_eq!(rows(&store, "key").finished().unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn rows_outlive_the_writer_and_the_last_of_a_name_counts() {
        let (_folder, store) = store();
        let log = rows(&store, "key");
        log.record("a", b"1").unwrap();
        log.record("b", b"0").unwrap();
        log.record("a", b"2").unwrap();
        let found = rows(&store, "key").finished().unwrap();
        assert_eq!(found, BTreeMap::from([("a".into(), b"2".to_vec()), ("b".into(), b"0".to_vec())]));
    }

    #[test]
    fn a_torn_tail_loses_only_the_torn_row() {
        let (_folder, store) = store();
        rows(&store, "key").record("a", b"first").unwrap();
        let path = rows(&store, "key").log();
        let whole = std::fs::read(&path).unwrap().len();
        rows(&store, "key").record("b", b"second").unwrap();
        let both = std::fs::read(&path).unwrap();
        for cut in whole..both.len() {
            std::fs::write(&path, &both[..cut]).unwrap();
            rows(&store, "key").record("c", b"third").unwrap();
            let names: Vec<_> = rows(&store, "key").finished().unwrap().into_keys().collect();
            assert_eq!(names, ["a", "c"], "cut at {cut}");
        }
    }

    #[test]
    fn rows_of_another_draw_are_neither_found_nor_mixed_in() {
        let (_folder, store) = store();
        let finished = |draw| drawn(&store, "key", draw).finished().unwrap().into_keys().collect::<Vec<_>>();
        for (draw, other) in [(0, 1), (1, 0), (2, 1)] {
            drawn(&store, "key", other).record("a", b"other").unwrap();
            assert_eq!(finished(draw), [""; 0], "{draw} after {other}");
            drawn(&store, "key", draw).record("b", b"own").unwrap();
            drawn(&store, "key", draw).record("c", b"own").unwrap();
            assert_eq!(finished(draw), ["b", "c"], "{draw} after {other}");
            assert_eq!(finished(other), [""; 0]);
        }
    }

    #[test]
    fn rows_of_a_draw_are_left_to_the_same_draw_of_the_family() {
        let (_folder, store) = store();
        for remainder in [Remainder::Names, Remainder::Rows] {
            let log = drawn(&store, "key", 3);
            log.record("a", b"row").unwrap();
            log.end(remainder).unwrap();
            assert_eq!(rows(&store, "new").relatives().unwrap(), FamilyRows::default(), "{remainder:?}");
            let found = drawn(&store, "new", 3).relatives().unwrap();
            let names = BTreeSet::from(["a".to_owned()]);
            assert_eq!(found.finished, BTreeMap::from([(Digest::of(b"key"), names)]), "{remainder:?}");
            assert!(found.rows.keys().all(|name| name == "a"), "{remainder:?}");
            std::fs::remove_file(log.log().with_extension("done")).unwrap();
            // A log of another draw has nothing to leave.
            drawn(&store, "key", 1).record("b", b"row").unwrap();
            drawn(&store, "key", 2).end(remainder).unwrap();
            assert_eq!(drawn(&store, "new", 2).relatives().unwrap(), FamilyRows::default(), "{remainder:?}");
        }
    }

    #[test]
    fn damage_costs_the_rows_that_it_hits_and_is_reported_once() {
        let (_folder, store) = store();
        for draw in [0, 3] {
            for name in ["a", "b", "c"] {
                drawn(&store, "key", draw).record(name, b"row").unwrap();
            }
            let path = drawn(&store, "key", draw).log();
            let whole = std::fs::read(&path).unwrap();
            let frame = frame("a", b"row", draw).unwrap().len();
            let begin = whole.len() - 3 * frame;
            for at in begin..whole.len() {
                let mut bytes = whole.clone();
                bytes[at] ^= 1;
                std::fs::write(&path, &bytes).unwrap();
                drawn(&store, "key", draw).record("d", b"row").unwrap();
                let log = drawn(&store, "key", draw);
                let mut left = vec!["a", "b", "c", "d"];
                left.remove((at - begin) / frame);
                assert_eq!(log.finished().unwrap().into_keys().collect::<Vec<_>>(), left, "{at}");
                let is_last = at >= whole.len() - frame;
                let damage = log.damage();
                assert!(is_last || damage[0].starts_with(&format!("{frame} bytes of ")), "{damage:?}");
                assert_eq!((damage.len(), log.damage().len()), (usize::from(!is_last), 0));
            }
            // A block that was never written.
            let blank = [&vec![0; begin + frame + 7], &whole[begin + frame + 7..]].concat();
            std::fs::write(&path, blank).unwrap();
            assert_eq!(drawn(&store, "key", draw).finished().unwrap().into_keys().collect::<Vec<_>>(), ["c"]);
            assert!(drawn(&store, "key", draw + 1).finished().unwrap().is_empty(), "rows of another draw");
            drawn(&store, "key", draw).end(Remainder::Nothing).unwrap();
        }
    }

    #[test]
    fn a_finished_result_leaves_names_or_rows_or_nothing_to_its_family() {
        let (_folder, store) = store();
        for (key, remainder) in [("n", Remainder::Nothing), ("s", Remainder::Names), ("r", Remainder::Rows)] {
            rows(&store, key).record(key, b"row").unwrap();
            rows(&store, key).end(remainder).unwrap();
            assert!(rows(&store, key).finished().unwrap().is_empty());
        }
        let names = |key: &str| (Digest::of(key.as_bytes()), BTreeSet::from([key.to_owned()]));
        let expected = FamilyRows {
            rows: BTreeMap::from([("r".into(), b"row".to_vec())]),
            finished: BTreeMap::from([names("s"), names("r")]),
        };
        assert_eq!(rows(&store, "new").relatives().unwrap(), expected);
        let strange = store.rows(&Digest::of(b"another"), &Digest::of(b"new"), 0);
        assert_eq!(strange.relatives().unwrap(), FamilyRows::default());
    }

    #[test]
    fn rows_of_an_interrupted_relative_are_found_and_empty_ones_only_named() {
        let (_folder, store) = store();
        let half = rows(&store, "half");
        half.record("own", b"row").unwrap();
        half.record("elsewhere", b"").unwrap();
        let found = rows(&store, "new").relatives().unwrap();
        assert_eq!(found.rows.into_keys().collect::<Vec<_>>(), ["own"]);
        assert_eq!(half.finished().unwrap().into_keys().collect::<Vec<_>>(), ["own"]);
        half.end(Remainder::Names).unwrap();
        let found = rows(&store, "new").relatives().unwrap();
        let names = BTreeSet::from(["elsewhere".into(), "own".into()]);
        assert_eq!(found.finished, BTreeMap::from([(Digest::of(b"half"), names)]));
    }

    /// Writes this as a checkpoint.
    fn text(text: &'static str) -> impl Fn(&Path) -> Result<(), StoreError> {
        move |path| std::fs::write(path, text).map_err(|cause| StoreError::writing(path, cause))
    }

    #[test]
    fn a_checkpoint_has_any_size_and_only_a_whole_one_replaces_it() {
        let (_folder, store) = store();
        let log = rows(&store, "key");
        assert_eq!(log.checkpoint(), None);
        // Rows end at 4 GiB. The file is sparse.
        let large = |path: &Path| {
            let file = File::create(path).map_err(|cause| StoreError::writing(path, cause))?;
            file.set_len((4 << 30) + 1).map_err(|cause| StoreError::writing(path, cause))
        };
        log.replace_checkpoint(large).unwrap();
        let path = log.checkpoint().unwrap();
        assert_eq!(path.metadata().unwrap().len(), (4 << 30) + 1);
        log.record("a", b"row").unwrap();
        assert_eq!(rows(&store, "key").finished().unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
        let relatives = rows(&store, "other").relatives().unwrap();
        assert_eq!(relatives.rows.into_keys().collect::<Vec<_>>(), ["a"]);

        let torn = |path: &Path| {
            std::fs::write(path, "half").unwrap();
            Err(StoreError::writing(path, std::io::Error::other("full")))
        };
        log.replace_checkpoint(torn).unwrap_err();
        assert_eq!(path.metadata().unwrap().len(), (4 << 30) + 1);
        log.replace_checkpoint(text("next")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"next");
    }

    #[test]
    fn a_checkpoint_whose_bytes_changed_is_none() {
        let (_folder, store) = store();
        let log = rows(&store, "key");
        log.replace_checkpoint(text("first")).unwrap();
        log.replace_checkpoint(text("second")).unwrap();
        let path = log.checkpoint().unwrap();
        // Killed before the second was put in place.
        std::fs::write(&path, "first").unwrap();
        assert!(log.checkpoint().is_some());
        for changed in ["tecond", "", "second and more"] {
            std::fs::write(&path, changed).unwrap();
            assert_eq!(log.checkpoint(), None, "{changed}");
        }
        log.replace_checkpoint(text("third")).unwrap();
        assert!(log.checkpoint().is_some());
        assert_eq!(rows(&store, "other").checkpoint(), None);
    }

    #[test]
    fn a_checkpoint_ends_with_its_rows_and_goes_with_an_older_result() {
        let (folder, store) = store();
        for remainder in [Remainder::Nothing, Remainder::Names, Remainder::Rows] {
            let log = rows(&store, "key");
            log.replace_checkpoint(text("state")).unwrap();
            log.end(remainder).unwrap();
            assert_eq!(log.checkpoint(), None);
        }
        let record = folder.path().join("record");
        let log = rows(&store, "key");
        log.replace_checkpoint(text("state")).unwrap();
        std::fs::write(&record, "").unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
        File::options().append(true).open(&record).unwrap().set_modified(later).unwrap();
        log.forget_before(&record).unwrap();
        assert_eq!(log.checkpoint(), None);
    }

    #[test]
    fn rows_recorded_before_a_file_are_discarded_and_later_ones_kept() {
        let (folder, store) = store();
        let log = rows(&store, "key");
        let record = folder.path().join("record");
        let dated = |path: &Path, seconds| {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            File::options().append(true).open(path).unwrap().set_modified(at).unwrap();
        };
        std::fs::write(&record, "").unwrap();
        log.record("a", b"1").unwrap();
        dated(&record, 50);
        dated(&log.log(), 60);
        log.forget_before(&record).unwrap();
        assert_eq!(log.finished().unwrap().len(), 1);
        dated(&log.log(), 40);
        log.forget_before(&record).unwrap();
        assert!(log.finished().unwrap().is_empty());
    }
}
