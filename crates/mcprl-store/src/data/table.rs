//! Rows as structs, columns as Arrow arrays, files as Parquet.
//!
//! Arrow's texts and lists have 32-bit offsets, and Parquet's pages 32-bit sizes. So a table is written in batches of limited
//! size, and read with 64-bit offsets: it may hold any number of bytes, and a row [`LARGEST_ROW`].

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::Display,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, BooleanArray, LargeListArray, ListArray, PrimitiveArray, RecordBatch,
        StringArray, StructArray, new_null_array,
    },
    buffer::{NullBuffer, OffsetBuffer},
    compute::{CastOptions, cast_with_options},
    datatypes::{
        ArrowPrimitiveType, DataType, Field, Fields, Float32Type, Float64Type, Schema, SchemaRef, UInt32Type,
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
use serde_json::{Map, Value};

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
    Column { path: PathBuf, table: &'static str, column: String, expected: String, found: String },
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
    /// The value of every row of an array that is [`conformed`] to this type; any value for a null.
    ///
    /// # Errors
    /// If one is none of this type.
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch>;
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
            fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
                Ok(array.as_primitive::<$arrow>().values().to_vec())
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
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
        Ok(array.as_boolean().values().iter().collect())
    }
}

/// A type whose column has texts.
pub trait AsText: Default {
    const IS_RARE: bool = false;
    /// What the texts are.
    const WHAT: &str;
    fn text(&self) -> Cow<'_, str>;
    /// `None` if the text is no such value.
    fn of_text(text: &str) -> Option<Self>;
}

impl<T: AsText> Item for T {
    const IS_RARE: bool = <T as AsText>::IS_RARE;
    const NULL_SIZE: usize = size_of::<i32>();
    fn data_type() -> DataType {
        DataType::Utf8
    }
    fn array(values: &[Option<&Self>]) -> ArrayRef {
        Arc::new(values.iter().map(|value| value.map(AsText::text)).collect::<StringArray>())
    }
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
        let value = |text: Option<&str>| {
            let Some(text) = text else { return Ok(Self::default()) };
            let shown = || text.chars().take(100).collect::<String>();
            Self::of_text(text).ok_or_else(|| Mismatch::new(T::WHAT, format!("{:?}", shown())))
        };
        array.as_string::<i64>().iter().map(value).collect()
    }
    fn size(&self) -> usize {
        size_of::<i32>() + self.text().len()
    }
}

impl AsText for String {
    const WHAT: &str = "a text";
    fn text(&self) -> Cow<'_, str> {
        self.into()
    }
    fn of_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// Named values whose names have columns of their own.
macro_rules! named {
    ($($name:ty: $what:literal),+ $(,)?) => {$(
        impl $crate::data::table::AsText for $name {
            const WHAT: &str = $what;
            fn text(&self) -> std::borrow::Cow<'_, str> {
                <&'static str>::from(*self).into()
            }
            fn of_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )+};
}
pub(super) use named;

/// Fields as JSON.
impl AsText for Map<String, Value> {
    const WHAT: &str = "a JSON object";
    fn text(&self) -> Cow<'_, str> {
        serde_json::to_string(self).unwrap_or_default().into()
    }
    fn of_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
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
        Arc::new(ListArray::new(item_field(T::data_type()), offsets, items, nulls(values)))
    }
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
        let list = array.as_list::<i64>();
        let (first, last) = (list.value_offsets()[0], list.value_offsets()[list.len()]);
        let mut items = T::values(&list.values().slice(first as usize, (last - first) as usize))?.into_iter();
        let lengths = list.offsets().lengths();
        Ok(lengths.map(|length| items.by_ref().take(length).collect()).collect())
    }
    fn size(&self) -> usize {
        size_of::<i32>() + self.iter().map(Item::size).sum::<usize>()
    }
}

fn nulls<T>(values: &[Option<&T>]) -> Option<NullBuffer> {
    let nulls = values.iter().map(Option::is_some).collect::<NullBuffer>();
    Some(nulls).filter(|nulls| nulls.null_count() > 0)
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
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
        Ok(T::values(array)?.into_iter().map(Self).collect())
    }
    fn size(&self) -> usize {
        self.0.size()
    }
}

/// Texts that most tables lack: the column is absent if no row has one.
macro_rules! rare_text {
    ($(#[doc = $about:literal] $name:ident)+) => {$(
        #[doc = $about]
        #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl AsText for $name {
            const IS_RARE: bool = true;
            const WHAT: &str = "a text";
            fn text(&self) -> Cow<'_, str> {
                self.0.as_str().into()
            }
            fn of_text(text: &str) -> Option<Self> {
                Some(Self(text.to_owned()))
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
    const IS_NULLABLE: bool;
    fn value(&self) -> Option<&Self::Item>;
    /// All values of an array that is [`conformed`] to the item's type.
    ///
    /// # Errors
    /// If one is none of the item's type.
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch>;
}

impl<T: Item> Column for T {
    type Item = T;
    const IS_NULLABLE: bool = false;
    fn value(&self) -> Option<&T> {
        Some(self)
    }
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
        <T as Item>::values(array)
    }
}

impl<T: Item> Column for Option<T> {
    type Item = T;
    const IS_NULLABLE: bool = true;
    fn value(&self) -> Option<&T> {
        self.as_ref()
    }
    fn values(array: &dyn Array) -> Result<Vec<Self>, Mismatch> {
        let values = <T as Item>::values(array)?.into_iter().enumerate();
        Ok(values.map(|(row, value)| array.is_valid(row).then_some(value)).collect())
    }
}

/// A column of a table's schema. Its documentation becomes metadata.
pub(super) fn field<C: Column>(name: &str, about: &str) -> Field {
    let metadata = HashMap::from([("doc".to_owned(), about.trim().to_owned())]);
    Field::new(name, C::Item::data_type(), C::IS_NULLABLE).with_metadata(metadata)
}

/// Whether a column is written: it is not rare, or a row has a value.
pub(super) fn is_written<'r, C: Column + 'r>(mut values: impl Iterator<Item = &'r C>) -> bool {
    !(C::IS_NULLABLE && C::Item::IS_RARE) || values.any(|value| value.value().is_some())
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

/// Values with names: a row of a table, or a part of one. Declare it with the `table!` or the `record!` macro.
pub trait Record: Sized {
    fn fields() -> Fields;
    /// The indices of the columns that are written: all but those that are omitted if they are null in all rows.
    fn written_columns(rows: &[Self]) -> Vec<usize>;
    /// These rows as columns. Their texts, and the items of their lists, have 32-bit offsets.
    fn arrays(rows: &[&Self]) -> Vec<ArrayRef>;
    /// Bytes that this row takes in arrays.
    fn bytes(&self) -> usize;
    /// The rows of columns that are [`conformed`].
    ///
    /// # Errors
    /// If a value is none of its column's type.
    fn of_array(columns: &StructArray) -> Result<Vec<Self>, Mismatch>;
}

/// The array of records within a column.
pub(super) fn record_array<R: Record + Default>(values: &[Option<&R>]) -> ArrayRef {
    let missing = R::default();
    let rows: Vec<&R> = values.iter().map(|value| value.unwrap_or(&missing)).collect();
    Arc::new(StructArray::new(R::fields(), R::arrays(&rows), nulls(values)))
}

/// A kind of row. Declare it with the `table!` macro.
pub trait Table: Record {
    /// The artifact type.
    const NAME: &'static str;
    /// Description of a row.
    const ABOUT: &'static str;
    fn schema() -> SchemaRef {
        Arc::new(Schema::new(Self::fields()))
    }
}

macro_rules! impl_record {
    ($name:ident { $( $(#[doc = $doc:expr])+ $field:ident: $type:ty, )+ }) => {
        impl $crate::data::table::Record for $name {
            fn fields() -> arrow::datatypes::Fields {
                [$( $crate::data::table::field::<$type>(stringify!($field), concat!($($doc),+)), )+].into_iter().collect()
            }

            fn written_columns(rows: &[Self]) -> Vec<usize> {
                let is_written = [$( $crate::data::table::is_written(rows.iter().map(|row| &row.$field)), )+];
                (0..is_written.len()).filter(|index| is_written[*index]).collect()
            }

            fn arrays(rows: &[&Self]) -> Vec<arrow::array::ArrayRef> {
                vec![$( $crate::data::table::array(rows.iter().map(|row| &row.$field)), )+]
            }

            fn bytes(&self) -> usize {
                [$( $crate::data::table::bytes(&self.$field), )+].iter().sum()
            }

            fn of_array(columns: &arrow::array::StructArray) -> Result<Vec<Self>, $crate::data::table::Mismatch> {
                let mut columns_left = columns.columns().iter();
                $(
                    let column = columns_left.next().expect("every field has a column");
                    let mut $field = <$type as $crate::data::table::Column>::values(column)
                        .map_err(|wrong| wrong.within(stringify!($field)))?
                        .into_iter();
                )+
                let row = |_| Self { $( $field: $field.next().expect("every column has a value for each row"), )+ };
                Ok((0..arrow::array::Array::len(columns)).map(row).collect())
            }
        }
    };
}
pub(super) use impl_record;

/// Declares a struct that is a part of rows: a column of structs, or of lists of them.
macro_rules! record {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derived:path),+)])?
        $name:ident { $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+ }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Default, PartialEq $($(, $derived)+)?)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        $crate::data::table::impl_record! { $name { $( $(#[doc = $doc])+ $field: $type, )+ } }

        impl $crate::data::table::Item for $name {
            fn data_type() -> arrow::datatypes::DataType {
                arrow::datatypes::DataType::Struct(<Self as $crate::data::table::Record>::fields())
            }
            fn array(values: &[Option<&Self>]) -> arrow::array::ArrayRef {
                $crate::data::table::record_array(values)
            }
            fn values(array: &dyn arrow::array::Array) -> Result<Vec<Self>, $crate::data::table::Mismatch> {
                $crate::data::table::Record::of_array(arrow::array::AsArray::as_struct(array))
            }
            fn size(&self) -> usize {
                $crate::data::table::Record::bytes(self)
            }
        }
    };
}
pub(super) use record;

/// Declares a row struct together with its Arrow schema; the doc comment of a field becomes the column's metadata. Behind a
/// table, `of NAME` declares rows with some of its columns, which have the types and the documentation of the table's.
macro_rules! table {
    (
        $(#[doc = $about:expr])+
        $name:ident in $table:literal {
            $( $(#[doc = $doc:expr])+ $field:ident: $type:ty, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        $crate::data::table::impl_record! { $name { $( $(#[doc = $doc])+ $field: $type, )+ } }

        impl $crate::data::Table for $name {
            const NAME: &'static str = $table;
            const ABOUT: &'static str = concat!($($about),+);
        }
    };
    (
        $(#[doc = $about:literal])+
        $name:ident in $table:literal {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+
        }
        $(
            $(#[doc = $of_part:literal])+
            of $part:ident { $($column:ident),+ $(,)? }
        )+
    ) => {
        $crate::data::table::table! {
            $(#[doc = $about])+
            $name in $table { $( $(#[doc = $doc])+ $field: $type, )+ }
        }

        /// The type and the documentation of a column.
        macro_rules! $name {
            $( (type $field) => { $type }; (doc $field) => { concat!($($doc),+) }; )+
        }

        $( $crate::data::table::part! { $name $table $part { $(#[doc = $of_part])+ } $($column)+ } )+
    };
}
pub(super) use table;

macro_rules! part {
    ($whole:ident $table:literal $part:ident { $(#[doc = $about:literal])+ } $($column:ident)+) => {
        $crate::data::table::table! {
            $(#[doc = $about])+
            $part in $table { $( #[doc = $whole!(doc $column)] $column: $whole!(type $column), )+ }
        }
    };
}
pub(super) use part;

/// The type with 64-bit offsets.
fn widened(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 => DataType::LargeUtf8,
        DataType::List(item) | DataType::LargeList(item) => DataType::LargeList(widened_field(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(widened_field).collect()),
        other => other.clone(),
    }
}

fn widened_field(field: &Arc<Field>) -> Arc<Field> {
    Arc::new(field.as_ref().clone().with_data_type(widened(field.data_type())))
}

/// A column, or a part of one, that is not what it should be.
#[derive(Debug)]
pub struct Mismatch {
    /// The names on the way to it, joined by dots.
    part: String,
    expected: String,
    found: String,
}

impl Mismatch {
    pub(super) fn new(expected: impl Display, found: impl Into<String>) -> Self {
        // The width of the offsets is ours.
        let found = found.into().replace("Large", "");
        Self { part: String::new(), expected: expected.to_string(), found }
    }

    pub(super) fn within(self, name: &str) -> Self {
        let part = if self.part.is_empty() { name.to_owned() } else { format!("{name}.{}", self.part) };
        Self { part, ..self }
    }
}

/// The array with this type, [`widened`], if its values can have it without a change of meaning: numbers of other widths, texts
/// and lists in any of Arrow's layouts, and records with the same names in any order. Unknown names of a record are left out,
/// and optional ones that it lacks are null.
fn conformed(array: &ArrayRef, expected: &DataType) -> Result<ArrayRef, Mismatch> {
    use DataType::{LargeList, LargeUtf8, List, Struct, Utf8, Utf8View};
    let found = array.data_type();
    let wrong = |problem: &str| Mismatch::new(expected, format!("{found}{problem}"));
    let is_castable = match (found, expected) {
        (Struct(_), Struct(fields)) => return Ok(Arc::new(conformed_record(array.as_struct(), fields)?)),
        (List(_), List(item)) => {
            let (_, offsets, items, nulls) = array.as_list::<i32>().clone().into_parts();
            let offsets = OffsetBuffer::new(offsets.iter().map(|offset| i64::from(*offset)).collect());
            return conformed_list(&items, item, offsets, nulls);
        }
        (LargeList(_), List(item)) => {
            let (_, offsets, items, nulls) = array.as_list::<i64>().clone().into_parts();
            return conformed_list(&items, item, offsets, nulls);
        }
        (Utf8 | LargeUtf8 | Utf8View, Utf8) => true,
        (found, expected) if expected.is_integer() => found.is_integer(),
        (found, expected) if expected.is_floating() => found.is_numeric(),
        (found, expected) => found == expected,
    };
    if !is_castable {
        return Err(wrong(""));
    }
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, &widened(expected), &strict).map_err(|problem| wrong(&format!(": {problem}")))
}

fn conformed_list(
    items: &ArrayRef,
    item: &Arc<Field>,
    offsets: OffsetBuffer<i64>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, Mismatch> {
    let items = conformed(items, item.data_type())?;
    if items.null_count() > 0 {
        return Err(Mismatch::new(item.data_type(), format!("{} with nulls", items.data_type())));
    }
    Ok(Arc::new(LargeListArray::new(item_field(items.data_type().clone()), offsets, items, nulls)))
}

/// A record, or a batch of rows, with these columns.
fn conformed_record(found: &StructArray, fields: &Fields) -> Result<StructArray, Mismatch> {
    let column = |field: &Arc<Field>| -> Result<ArrayRef, Mismatch> {
        let Some(column) = found.column_by_name(field.name()) else {
            return match field.is_nullable() {
                true => Ok(new_null_array(&widened(field.data_type()), found.len())),
                false => Err(Mismatch::new(field.data_type(), "none")),
            };
        };
        let column = conformed(column, field.data_type())?;
        // What is missing has no parts.
        let is_missing = |row: usize| column.is_null(row) && found.is_valid(row);
        if !field.is_nullable() && column.null_count() > 0 && (0..found.len()).any(is_missing) {
            return Err(Mismatch::new(field.data_type(), format!("{} with nulls", column.data_type())));
        }
        Ok(column)
    };
    let named = |field: &Arc<Field>| column(field).map_err(|wrong| wrong.within(field.name()));
    let columns = fields.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    // A part is null where the whole is.
    let optional = |(field, column): (&Arc<Field>, &ArrayRef)| {
        Field::new(field.name(), column.data_type().clone(), true)
    };
    let fields = fields.iter().zip(&columns).map(optional).collect();
    Ok(StructArray::new(fields, columns, found.nulls().cloned()))
}

/// The rows of a batch, after checking its types. Another program may have written them with other widths.
fn rows_of<T: Table>(batch: RecordBatch, path: &Path) -> Result<Vec<T>, DataError> {
    let read =
        conformed_record(&StructArray::from(batch), &T::fields()).and_then(|columns| T::of_array(&columns));
    read.map_err(|Mismatch { part, expected, found }| DataError::Column {
        path: path.to_owned(),
        table: T::NAME,
        column: part,
        expected,
        found,
    })
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

/// These rows with all columns.
fn to_batch<T: Table>(rows: &[T]) -> RecordBatch {
    let arrays = T::arrays(&rows.iter().collect::<Vec<_>>());
    RecordBatch::try_new(T::schema(), arrays)
        .expect("columns are built from the schema they are checked against")
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
        let batch = to_batch(batch).project(&columns).map_err(|source| wrap(source.into()))?;
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
    let fields: Fields = found.schema().fields().iter().map(widened_field).collect();
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
        found.extend(rows_of(batch, path)?);
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
