//! Threads that share one operation.
//!
//! An operation called on a thread of a rayon pool is divided among the threads of that pool. On any other
//! thread it runs alone. The division is by elements of the result, so the number of threads changes no bit.

use std::ops::Range;

/// Operations smaller than this, in multiply-adds, are not worth waking another thread.
const WORTH_SHARING: usize = 1 << 18;

/// Number of threads for an operation of this many multiply-adds.
pub fn threads(operations: usize) -> usize {
    match rayon::current_thread_index() {
        Some(_) if operations >= WORTH_SHARING => rayon::current_num_threads(),
        _ => 1,
    }
}

/// Calls `task` for every index below `tasks`, on all threads of the pool if `threads` is more than one.
pub fn share(threads: usize, tasks: usize, task: impl Fn(usize) + Sync) {
    if threads <= 1 || tasks <= 1 {
        return (0..tasks).for_each(task);
    }
    let (task, next) = (&task, &std::sync::atomic::AtomicUsize::new(0));
    let work = move || {
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            task(index);
        }
    };
    rayon::scope(|scope| {
        for _ in 1..threads.min(tasks) {
            scope.spawn(move |_| work());
        }
        work();
    });
}

/// Splits `count` items into runs of whole `unit`s, one for each of `threads` or a few more for balance.
pub fn runs(count: usize, unit: usize, threads: usize) -> Vec<Range<usize>> {
    let units = count.div_ceil(unit);
    let parts = if threads <= 1 { 1 } else { units.min(4 * threads) };
    (0..parts)
        .map(|part| units * part / parts * unit..(units * (part + 1) / parts * unit).min(count))
        .collect()
}

/// Calls `work` for runs of rows, with those rows of each output. Uses all threads if the operation is large
/// enough.
///
/// `operations`: multiply-adds per row.
pub fn by_rows<const N: usize>(
    rows: usize,
    operations: usize,
    outputs: [&mut [f32]; N],
    work: impl Fn(Range<usize>, [&mut [f32]; N]) + Sync,
) {
    let threads = threads(rows * operations);
    if threads <= 1 {
        return work(0..rows, outputs);
    }
    let outputs = outputs.map(|output| (output.len() / rows, Shared::new(output)));
    let runs = runs(rows, 1, threads);
    share(threads, runs.len(), |index| {
        let run = runs[index].clone();
        // SAFETY: the runs are apart.
        let parts =
            outputs.map(|(width, output)| unsafe { output.range(run.start * width..run.end * width) });
        work(run, parts);
    });
}

/// A result whose parts are written by several threads.
#[derive(Debug)]
pub struct Shared<T = f32>(*mut T, usize);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: only a pointer; code that writes through it promises disjoint ranges.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr(), values.len())
    }

    /// Pointer to value `index`.
    pub fn at(self, index: usize) -> *mut T {
        assert!(index <= self.1, "{index} is beyond the {} values", self.1);
        self.0.wrapping_add(index)
    }

    /// The values of a range.
    ///
    /// # Safety
    /// Nothing else touches them while the slice lives.
    pub unsafe fn range<'a>(self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.1, "{range:?} is beyond the {} values", self.1);
        // SAFETY: within the slice by the assertion; apart by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}
