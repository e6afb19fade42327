//! Rows as structs, columns as Arrow arrays, files as Parquet.
//!
//! Arrow's texts and lists have 32-bit offsets, and Parquet's pages 32-bit sizes. So a table is written in batches of limited
//! size, and read with 64-bit offsets: it may hold any number of bytes, and a row [`LARGEST_ROW`].

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, PrimitiveArray, RecordBatch, StringArray},
    buffer::{NullBuffer, OffsetBuffer},
    compute::{CastOptions, cast_with_options},
    datatypes::{
        ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Schema, SchemaRef, UInt32Type,
        UInt64Type,
    },
};
use mcprl_base::error::Diagnostic;
use parquet::{
    arrow::{
        ArrowWriter, ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection,
        },
    },
    basic::Compression,
    file::{metadata::PageIndexPolicy, properties::WriterProperties},
};

/// Errors of reading or writing a table.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "data")]
pub enum DataError {
    #[error("cannot open {path}")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a readable {table} table")]
    #[diagnostic(code = "unreadable")]
    #[hint = "the file is truncated, not Parquet, or compressed with something other than snappy or zstd"]
    Read { path: PathBuf, table: &'static str, source: parquet::errors::ParquetError },
    #[error("{path} is not a readable {table} table")]
    #[diagnostic(code = "unreadable")]
    #[hint = "the file is truncated, not Parquet, or compressed with something other than snappy or zstd"]
    Batch { path: PathBuf, table: &'static str, source: arrow::error::ArrowError },
    #[error("{path}: the {table} table needs a column `{column}` of type {expected}, found {found}")]
    #[hint = "another version of mcprl or a custom stage wrote the file; docs/reference/stages.md lists the columns"]
    Column { path: PathBuf, table: &'static str, column: &'static str, expected: String, found: String },
    #[error("{path}: `{column}` of row {row} is {value}")]
    #[hint = "rewards must be finite numbers"]
    Value { path: PathBuf, column: &'static str, row: usize, value: f32 },
    #[error("{path}: `checks` of row {row} cannot be used: {problem}")]
    #[hint = "docs/guides/scenarios.md describes the checks of a scenario"]
    Checks { path: PathBuf, row: usize, problem: String },
    #[error("row {row} of the {table} table has {} MiB, and a row has at most {} MiB", bytes >> 20, most >> 20)]
    #[hint = "limit what a server returns or an episode holds: result_tokens, max_tokens, max_turns"]
    TooLarge { table: &'static str, row: usize, bytes: usize, most: usize },
    #[error("cannot write {path}")]
    #[hint = "check that the disk is not full and the folder is writable"]
    Write { path: PathBuf, source: parquet::errors::ParquetError },
}

/// A type of the values of a column.
pub trait Item: Sized {
    /// Whether most tables lack the values: an optional column is absent if no row has one.
    const IS_RARE: bool = false;
    /// Bytes that a missing value takes in an array.
    const NULL_SIZE: usize = size_of::<Self>();
    fn data_type() -> DataType;
    fn array(values: &[Option<&Self>]) -> ArrayRef;
    /// The value of every row of an array of this type, [`widened`]; any value for a null.
    fn values(array: &dyn Array) -> Vec<Self>;
    /// Bytes that a value takes in an array.
    fn size(&self) -> usize {
        size_of::<Self>()
    }
}

macro_rules! items {
    ($($rust:ty => $arrow:ty),*) => {$(
        impl Item for $rust {
            fn data_type() -> DataType {
                <$arrow>::DATA_TYPE
            }
            fn array(values: &[Option<&Self>]) -> ArrayRef {
                Arc::new(values.iter().map(|value| value.copied()).collect::<PrimitiveArray<$arrow>>())
            }
            fn values(array: &dyn Array) -> Vec<Self> {
                array.as_primitive::<$arrow>().values().to_vec()
            }
        }
    )*};
}

items!(u32 => UInt32Type, u64 => UInt64Type, f32 => Float32Type, f64 => Float64Type);

impl Item for bool {
    fn data_type() -> DataType {
        DataType::Boolean
    }
    fn array(values: &[Option<&Self>]) -> ArrayRef {
        Arc::new(values.iter().map(|value| value.copied()).collect::<BooleanArray>())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        array.as_boolean().values().iter().collect()
    }
}

impl Item for String {
    fn data_type() -> DataType {
        DataType::Utf8
    }
    fn array(values: &[Option<&Self>]) -> ArrayRef {
        Arc::new(values.iter().copied().collect::<StringArray>())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let texts = array.as_string::<i64>();
        (0..texts.len()).map(|row| texts.value(row).to_owned()).collect()
    }
    fn size(&self) -> usize {
        size_of::<i32>() + self.len()
    }
}

/// Lists. An optional column of them is absent if no row has one.
impl<T: Item> Item for Vec<T> {
    const IS_RARE: bool = true;
    const NULL_SIZE: usize = size_of::<i32>();
    fn data_type() -> DataType {
        DataType::List(item_field(T::data_type()))
    }
    fn array(values: &[Option<&Self>]) -> ArrayRef {
        let offsets = OffsetBuffer::from_lengths(values.iter().map(|list| list.map_or(0, Vec::len)));
        let items = T::array(&values.iter().copied().flatten().flatten().map(Some).collect::<Vec<_>>());
        let nulls = values.iter().map(Option::is_some).collect::<NullBuffer>();
        let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
        Arc::new(ListArray::new(item_field(T::data_type()), offsets, items, nulls))
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let list = array.as_list::<i64>();
        (0..list.len()).map(|row| T::values(&list.value(row))).collect()
    }
    fn size(&self) -> usize {
        size_of::<i32>() + self.iter().map(Item::size).sum::<usize>()
    }
}

/// A value that most tables lack: its column is absent if no row has one.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Sparse<T>(pub T);

impl<T: Item> Item for Sparse<T> {
    const IS_RARE: bool = true;
    const NULL_SIZE: usize = T::NULL_SIZE;
    fn data_type() -> DataType {
        T::data_type()
    }
    fn array(values: &[Option<&Self>]) -> ArrayRef {
        T::array(&values.iter().map(|value| value.map(|Self(value)| value)).collect::<Vec<_>>())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        T::values(array).into_iter().map(Self).collect()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
}

/// Texts that most tables lack: the column is absent if no row has one.
macro_rules! rare_text {
    ($(#[doc = $about:literal] $name:ident)+) => {$(
        #[doc = $about]
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl Item for $name {
            const IS_RARE: bool = true;
            const NULL_SIZE: usize = size_of::<i32>();
            fn data_type() -> DataType {
                String::data_type()
            }
            fn array(values: &[Option<&Self>]) -> ArrayRef {
                String::array(&values.iter().map(|value| value.map(|Self(text)| text)).collect::<Vec<_>>())
            }
            fn values(array: &dyn Array) -> Vec<Self> {
                <String as Item>::values(array).into_iter().map(Self).collect()
            }
            fn size(&self) -> usize {
                self.0.size()
            }
        }
    )+};
}

rare_text! {
    /// A text in JSON. Its column is absent if no row has one.
    Json
    /// The name of a server of the run. Its column is absent if no row has one.
    ServerName
    /// What a solution writes before its answer. Its column is absent if no row has one.
    Working
}

/// A Rust type that can be a column: an item, or an optional one.
pub trait Column: Sized {
    type Item: Item;
    fn value(&self) -> Option<&Self::Item>;
    /// All values of an array of the item's type, [`widened`].
    fn values(array: &dyn Array) -> Vec<Self>;
    /// The value of every row if a file lacks the column; `None` if the column is required.
    fn null() -> Option<Self> {
        None
    }
}

impl<T: Item> Column for T {
    type Item = T;
    fn value(&self) -> Option<&T> {
        Some(self)
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        T::values(array)
    }
}

impl<T: Item> Column for Option<T> {
    type Item = T;
    fn value(&self) -> Option<&T> {
        self.as_ref()
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let values = T::values(array).into_iter().enumerate();
        values.map(|(row, value)| array.is_valid(row).then_some(value)).collect()
    }
    fn null() -> Option<Self> {
        Some(None)
    }
}

fn is_nullable<C: Column>() -> bool {
    C::null().is_some()
}

/// A column of a table's schema. Its documentation becomes metadata.
pub(super) fn field<C: Column>(name: &str, about: &str) -> Field {
    let metadata = HashMap::from([("doc".to_owned(), about.trim().to_owned())]);
    Field::new(name, C::Item::data_type(), is_nullable::<C>()).with_metadata(metadata)
}

/// Whether a column is written: it is not rare, or a row has a value.
pub(super) fn is_written<'r, C: Column + 'r>(mut values: impl Iterator<Item = &'r C>) -> bool {
    !(is_nullable::<C>() && C::Item::IS_RARE) || values.any(|value| value.value().is_some())
}

pub(super) fn array<'r, C: Column + 'r>(values: impl Iterator<Item = &'r C>) -> ArrayRef {
    C::Item::array(&values.map(Column::value).collect::<Vec<_>>())
}

/// Bytes that this value takes in an array.
pub(super) fn bytes<C: Column>(value: &C) -> usize {
    value.value().map_or(C::Item::NULL_SIZE, Item::size)
}

fn item_field(item: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", item, false))
}

/// A kind of row. Declare it with the `table!` macro.
pub trait Table: Sized {
    /// The artifact type.
    const NAME: &'static str;
    /// Description of a row.
    const ABOUT: &'static str;
    fn schema() -> SchemaRef;
    /// The indices of the columns that are written: all but those that are omitted if they are null in all rows.
    fn written_columns(rows: &[Self]) -> Vec<usize>;
    /// These rows with all columns. Their texts, and the items of their lists, have 32-bit offsets.
    fn to_batch(rows: &[Self]) -> RecordBatch;
    /// Bytes that this row takes in a batch.
    fn bytes(&self) -> usize;
    fn from_batch(batch: &RecordBatch, path: &Path) -> Result<Vec<Self>, DataError>;
}

/// Declares a row struct together with its Arrow schema; the doc comment of a field becomes the column's metadata.
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $name:ident in $table:literal {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl $crate::data::Table for $name {
            const NAME: &'static str = $table;
            const ABOUT: &'static str = concat!($($about),+);

            fn schema() -> arrow::datatypes::SchemaRef {
                std::sync::Arc::new(arrow::datatypes::Schema::new(vec![
                    $( $crate::data::table::field::<$type>(stringify!($field), concat!($($doc),+)), )+
                ]))
            }

            fn written_columns(rows: &[Self]) -> Vec<usize> {
                let is_written = [$( $crate::data::table::is_written(rows.iter().map(|row| &row.$field)), )+];
                (0..is_written.len()).filter(|index| is_written[*index]).collect()
            }

            fn to_batch(rows: &[Self]) -> arrow::array::RecordBatch {
                let columns = vec![$( $crate::data::table::array(rows.iter().map(|row| &row.$field)), )+];
                arrow::array::RecordBatch::try_new(Self::schema(), columns)
                    .expect("columns are built from the schema they are checked against")
            }

            fn bytes(&self) -> usize {
                [$( $crate::data::table::bytes(&self.$field), )+].iter().sum()
            }

            fn from_batch(
                batch: &arrow::array::RecordBatch,
                path: &std::path::Path,
            ) -> Result<Vec<Self>, $crate::data::DataError> {
                $( let mut $field = $crate::data::table::column::<$type>(batch, stringify!($field), $table, path)?.into_iter(); )+
                let mut rows = Vec::with_capacity(batch.num_rows());
                for _ in 0..batch.num_rows() {
                    rows.push(Self { $( $field: $field.next().expect("every column has num_rows values"), )+ });
                }
                Ok(rows)
            }
        }
    };
}
pub(super) use table;

/// The type with 64-bit offsets.
fn widened(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 => DataType::LargeUtf8,
        DataType::List(item) | DataType::LargeList(item) => {
            let wide = widened(item.data_type());
            DataType::LargeList(Arc::new(item.as_ref().clone().with_data_type(wide)))
        }
        other => other.clone(),
    }
}

/// Whether values of one type can be cast to another without a change of meaning: numbers of other widths, texts and
/// lists in any of Arrow's layouts.
fn is_castable(found: &DataType, expected: &DataType) -> bool {
    use DataType::{LargeList, LargeUtf8, List, Utf8, Utf8View};
    match (found, expected) {
        (Utf8 | LargeUtf8 | Utf8View, Utf8) => true,
        (List(found) | LargeList(found), List(expected)) => {
            is_castable(found.data_type(), expected.data_type())
        }
        (found, expected) if expected.is_integer() => found.is_integer(),
        (found, expected) if expected.is_floating() => found.is_numeric(),
        (found, expected) => found == expected,
    }
}

/// The values of one column, after checking its type. Another program may have written the column with other widths.
pub(super) fn column<C: Column>(
    batch: &RecordBatch,
    name: &'static str,
    table: &'static str,
    path: &Path,
) -> Result<Vec<C>, DataError> {
    let wrong = |found: String| DataError::Column {
        path: path.to_owned(),
        table,
        column: name,
        expected: C::Item::data_type().to_string(),
        found,
    };
    let Some(array) = batch.column_by_name(name) else {
        let rows: Vec<C> = (0..batch.num_rows()).filter_map(|_| C::null()).collect();
        return if is_nullable::<C>() { Ok(rows) } else { Err(wrong("none".into())) };
    };
    let mut array = array.clone();
    // The width of the offsets is ours.
    let found = array.data_type().to_string().replace("Large", "");
    let expected = widened(&C::Item::data_type());
    if array.data_type() != &expected {
        if !is_castable(array.data_type(), &C::Item::data_type()) {
            return Err(wrong(found));
        }
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        array = cast_with_options(&array, &expected, &strict)
            .map_err(|problem| wrong(format!("{found}: {problem}")))?;
    }
    if !is_nullable::<C>() && array.null_count() > 0 {
        return Err(wrong(format!("{found} with nulls")));
    }
    Ok(C::values(array.as_ref()))
}

/// Where a table is cut into batches: before a batch would have more rows or bytes.
#[derive(Debug, Clone, Copy)]
struct Cut {
    rows: usize,
    bytes: usize,
    /// Most bytes of a row, which may be a batch of its own.
    largest_row: usize,
}

/// Most bytes of a row.
const LARGEST_ROW: usize = 1 << 30;
const CUT: Cut = Cut { rows: 1 << 16, bytes: 64 << 20, largest_row: LARGEST_ROW };
/// Rows that are decoded at once.
const READ_ROWS: usize = 256;

/// The batches of a table.
fn batches<T: Table>(rows: &[T], cut: Cut) -> Result<Vec<&[T]>, DataError> {
    let (mut batches, mut first, mut total) = (Vec::new(), 0, 0);
    for (row, value) in rows.iter().enumerate() {
        let (bytes, most) = (value.bytes(), cut.largest_row);
        if bytes > most {
            return Err(DataError::TooLarge { table: T::NAME, row, bytes, most });
        }
        if row > first && (total + bytes > cut.bytes || row - first >= cut.rows) {
            batches.push(&rows[first..row]);
            (first, total) = (row, 0);
        }
        total += bytes;
    }
    batches.push(&rows[first..]);
    Ok(batches)
}

/// Writes rows as one Parquet file and syncs it to disk.
///
/// # Errors
/// Also fails if a row has more than [`LARGEST_ROW`] bytes.
pub fn write<T: Table>(path: &Path, rows: &[T]) -> Result<(), DataError> {
    write_cut(path, rows, CUT)
}

fn write_cut<T: Table>(path: &Path, rows: &[T], cut: Cut) -> Result<(), DataError> {
    let batches = batches(rows, cut)?;
    let wrap = |source| DataError::Write { path: path.to_owned(), source };
    let file = File::create(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("mcprl".into())
        .build();
    let columns = T::written_columns(rows);
    let schema = T::schema().project(&columns).map_err(|source| wrap(source.into()))?;
    let mut writer = ArrowWriter::try_new(file, Arc::new(schema), Some(properties)).map_err(wrap)?;
    for batch in batches {
        let batch = T::to_batch(batch).project(&columns).map_err(|source| wrap(source.into()))?;
        writer.write(&batch).map_err(wrap)?;
    }
    let file = writer.into_inner().map_err(wrap)?;
    file.sync_all().map_err(|source| wrap(source.into()))
}

/// Opens a Parquet file to be read with 64-bit offsets, whatever its writer had.
fn open(path: &Path, table: &'static str) -> Result<ParquetRecordBatchReaderBuilder<File>, DataError> {
    let file = File::open(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let wrap = |source| DataError::Read { path: path.to_owned(), table, source };
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    let found = ArrowReaderMetadata::load(&file, options.clone()).map_err(wrap)?;
    let wide = |field: &Arc<Field>| field.as_ref().clone().with_data_type(widened(field.data_type()));
    let fields: Vec<Field> = found.schema().fields().iter().map(wide).collect();
    let schema = Schema::new_with_metadata(fields, found.schema().metadata().clone());
    let options = options.with_schema(Arc::new(schema));
    let wide = ArrowReaderMetadata::try_new(found.metadata().clone(), options).map_err(wrap)?;
    Ok(ParquetRecordBatchReaderBuilder::new_with_metadata(file, wide).with_batch_size(READ_ROWS))
}

/// Reads every row of a Parquet file. Unknown columns are ignored, and not decoded.
pub fn read<T: Table>(path: &Path) -> Result<Vec<T>, DataError> {
    read_part(path, None)
}

/// The same for these rows (ascending; all if none are given). Pages without such rows are not read. Rows beyond the end are
/// left out.
pub fn read_part<T: Table>(path: &Path, rows: Option<&[usize]>) -> Result<Vec<T>, DataError> {
    let wrap = |source| DataError::Read { path: path.to_owned(), table: T::NAME, source };
    let mut builder = open(path, T::NAME)?;
    let declared = T::schema();
    let names = declared.fields().iter().map(|field| field.name().as_str());
    let mask = ProjectionMask::columns(builder.parquet_schema(), names);
    if let Some(rows) = rows {
        let total = usize::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or_default();
        let ranges = rows.iter().filter(|row| **row < total).map(|row| *row..*row + 1);
        builder = builder.with_row_selection(RowSelection::from_consecutive_ranges(ranges, total));
    }
    let mut found = Vec::new();
    for batch in builder.with_projection(mask).build().map_err(wrap)? {
        let batch =
            batch.map_err(|source| DataError::Batch { path: path.to_owned(), table: T::NAME, source })?;
        found.extend(T::from_batch(&batch, path)?);
    }
    Ok(found)
}

/// A column's name and its texts by row.
pub type TextColumn = (String, Vec<Option<String>>);

/// The columns of these names of any Parquet file, as texts; nothing for a null.
///
/// # Errors
/// If the file is not readable as Parquet.
pub fn text_columns(path: &Path, names: &[&str]) -> Result<Vec<TextColumn>, DataError> {
    let wrap = |source| DataError::Read { path: path.to_owned(), table: "texts", source };
    let of_batch = |source| DataError::Batch { path: path.to_owned(), table: "texts", source };
    let reader = open(path, "texts")?.build().map_err(wrap)?;
    let mut columns: Vec<(String, Vec<Option<String>>)> = Vec::new();
    for batch in reader {
        let batch = batch.map_err(of_batch)?;
        for name in names {
            let Some(array) = batch.column_by_name(name) else { continue };
            let text = |row| {
                let shown = || arrow::util::display::array_value_to_string(array, row);
                array.is_valid(row).then(shown).transpose()
            };
            let values: Vec<Option<String>> =
                (0..batch.num_rows()).map(text).collect::<Result<_, _>>().map_err(of_batch)?;
            match columns.iter_mut().find(|(known, _)| known == name) {
                Some((_, all)) => all.extend(values),
                None => columns.push(((*name).to_owned(), values)),
            }
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests;
