//! Rows as structs, columns as Arrow arrays, files as Parquet.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, RecordBatch,
    builder::{BooleanBuilder, ListBuilder, PrimitiveBuilder, StringBuilder},
    cast::AsArray,
    types::{Float32Type, Float64Type, Int64Type, UInt32Type, UInt64Type},
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    basic::Compression,
    file::properties::WriterProperties,
};

use crate::error::Diagnostic;

/// Errors of reading or writing a table.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot open {path}")]
    Open {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not a readable {table} table")]
    Read {
        path: PathBuf,
        table: &'static str,
        #[source]
        source: parquet::errors::ParquetError,
    },
    #[error("{path} is not a readable {table} table")]
    Batch {
        path: PathBuf,
        table: &'static str,
        #[source]
        source: ArrowError,
    },
    #[error("{path}: the {table} table needs a column `{column}` of type {expected}, found {found}")]
    Column { path: PathBuf, table: &'static str, column: &'static str, expected: String, found: String },
    #[error("{path}: `{column}` of row {row} is {value}")]
    Value { path: PathBuf, column: &'static str, row: usize, value: f32 },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: parquet::errors::ParquetError,
    },
}

impl Diagnostic for DataError {
    fn code(&self) -> &'static str {
        match self {
            Self::Open { .. } => "data::open",
            Self::Read { .. } | Self::Batch { .. } => "data::unreadable",
            Self::Column { .. } => "data::column",
            Self::Value { .. } => "data::value",
            Self::Write { .. } => "data::write",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Column { .. } => Some(
                "another version of mcprl or a custom stage wrote the file; docs/stages.md lists the columns"
                    .into(),
            ),
            Self::Read { .. } | Self::Batch { .. } => Some(
                "the file is truncated, not Parquet, or compressed with something other than snappy or zstd"
                    .into(),
            ),
            Self::Value { .. } => Some("rewards must be finite numbers".into()),
            Self::Write { .. } => Some("check that the disk is not full and the folder is writable".into()),
            Self::Open { .. } => None,
        }
    }
}

/// A Rust type that can be a column.
pub trait Column: Sized {
    fn data_type() -> DataType;
    fn nullable() -> bool {
        false
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef
    where
        Self: 'a;
    /// All values of an array whose type has been checked.
    fn values(array: &dyn Array) -> Vec<Self>;
    /// The value of every row if a file lacks the column; `None` if the column is required. An optional column that is
    /// null in all rows is not written.
    fn default_if_missing() -> Option<Self> {
        None
    }
}

macro_rules! primitive_column {
    ($($rust:ty => $arrow:ty),*) => {$(
        impl Column for $rust {
            fn data_type() -> DataType {
                <$arrow>::DATA_TYPE
            }
            fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
                let mut builder = PrimitiveBuilder::<$arrow>::new();
                values.for_each(|value| builder.append_value(*value));
                Arc::new(builder.finish())
            }
            fn values(array: &dyn Array) -> Vec<Self> {
                array.as_primitive::<$arrow>().values().to_vec()
            }
        }

        impl Column for Option<$rust> {
            fn data_type() -> DataType {
                <$arrow>::DATA_TYPE
            }
            fn nullable() -> bool {
                true
            }
            fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
                let mut builder = PrimitiveBuilder::<$arrow>::new();
                values.for_each(|value| builder.append_option(*value));
                Arc::new(builder.finish())
            }
            fn values(array: &dyn Array) -> Vec<Self> {
                array.as_primitive::<$arrow>().iter().collect()
            }
        }

        impl Column for Vec<$rust> {
            fn data_type() -> DataType {
                list_of(<$arrow>::DATA_TYPE)
            }
            fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
                let mut builder = ListBuilder::new(PrimitiveBuilder::<$arrow>::new())
                    .with_field(item_field(<$arrow>::DATA_TYPE));
                for items in values {
                    builder.values().append_slice(items);
                    builder.append(true);
                }
                Arc::new(builder.finish())
            }
            fn values(array: &dyn Array) -> Vec<Self> {
                let list = array.as_list::<i32>();
                (0..list.len())
                    .map(|row| list.value(row).as_primitive::<$arrow>().values().to_vec())
                    .collect()
            }
        }
    )*};
}

primitive_column!(u32 => UInt32Type, u64 => UInt64Type, i64 => Int64Type, f32 => Float32Type, f64 => Float64Type);

fn item_field(item: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", item, false))
}

fn list_of(item: DataType) -> DataType {
    DataType::List(item_field(item))
}

impl Column for bool {
    fn data_type() -> DataType {
        DataType::Boolean
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut builder = BooleanBuilder::new();
        values.for_each(|value| builder.append_value(*value));
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        array.as_boolean().values().iter().collect()
    }
}

impl Column for Option<bool> {
    fn data_type() -> DataType {
        DataType::Boolean
    }
    fn nullable() -> bool {
        true
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut builder = BooleanBuilder::new();
        values.for_each(|value| builder.append_option(*value));
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        array.as_boolean().iter().collect()
    }
}

impl Column for Vec<bool> {
    fn data_type() -> DataType {
        list_of(DataType::Boolean)
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut builder = ListBuilder::new(BooleanBuilder::new()).with_field(item_field(DataType::Boolean));
        for items in values {
            builder.values().append_slice(items);
            builder.append(true);
        }
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let list = array.as_list::<i32>();
        (0..list.len()).map(|row| list.value(row).as_boolean().values().iter().collect()).collect()
    }
}

impl Column for String {
    fn data_type() -> DataType {
        DataType::Utf8
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut builder = StringBuilder::new();
        values.for_each(|value| builder.append_value(value));
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let texts = array.as_string::<i32>();
        (0..texts.len()).map(|row| texts.value(row).to_owned()).collect()
    }
}

impl Column for Option<String> {
    fn data_type() -> DataType {
        DataType::Utf8
    }
    fn nullable() -> bool {
        true
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut builder = StringBuilder::new();
        values.for_each(|value| builder.append_option(value.as_deref()));
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        array.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }
}

impl Column for Vec<String> {
    fn data_type() -> DataType {
        list_of(DataType::Utf8)
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut builder = ListBuilder::new(StringBuilder::new()).with_field(item_field(DataType::Utf8));
        for items in values {
            items.iter().for_each(|item| builder.values().append_value(item));
            builder.append(true);
        }
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let list = array.as_list::<i32>();
        (0..list.len()).map(|row| String::values(&list.value(row))).collect()
    }
}

/// A list of indices that most rows lack.
impl Column for Option<Vec<u32>> {
    fn data_type() -> DataType {
        list_of(DataType::UInt32)
    }
    fn nullable() -> bool {
        true
    }
    fn build<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let numbers = PrimitiveBuilder::<UInt32Type>::new();
        let mut builder = ListBuilder::new(numbers).with_field(item_field(DataType::UInt32));
        for items in values {
            builder.values().append_slice(items.as_deref().unwrap_or_default());
            builder.append(items.is_some());
        }
        Arc::new(builder.finish())
    }
    fn values(array: &dyn Array) -> Vec<Self> {
        let list = array.as_list::<i32>();
        let row = |row| list.is_valid(row).then(|| u32::values(&list.value(row)));
        (0..list.len()).map(row).collect()
    }
    fn default_if_missing() -> Option<Self> {
        Some(None)
    }
}

/// A kind of row. Declare it with the `table!` macro.
pub trait Table: Sized {
    /// The artifact type.
    const NAME: &'static str;
    /// Description of a row.
    const ABOUT: &'static str;
    fn schema() -> SchemaRef;
    fn to_batch(rows: &[Self]) -> RecordBatch;
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
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl $crate::data::Table for $name {
            const NAME: &'static str = $table;
            const ABOUT: &'static str = concat!($($about),+);

            fn schema() -> arrow_schema::SchemaRef {
                use $crate::data::Column;
                std::sync::Arc::new(arrow_schema::Schema::new(vec![
                    $( arrow_schema::Field::new(
                        stringify!($field),
                        <$type as Column>::data_type(),
                        <$type as Column>::nullable(),
                    )
                    .with_metadata(std::collections::HashMap::from([(
                        "doc".to_owned(),
                        concat!($($doc),+).trim().to_owned(),
                    )])), )+
                ]))
            }

            fn to_batch(rows: &[Self]) -> arrow_array::RecordBatch {
                use $crate::data::Column;
                let columns = vec![$( <$type as Column>::build(rows.iter().map(|row| &row.$field)), )+];
                let batch = arrow_array::RecordBatch::try_new(Self::schema(), columns)
                    .expect("columns are built from the schema they are checked against");
                let is_optional = [$( <$type as Column>::default_if_missing().is_some(), )+];
                $crate::data::table::without_empty_optionals(batch, &is_optional)
            }

            fn from_batch(
                batch: &arrow_array::RecordBatch,
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

/// Drops the optional columns that are null in all rows.
pub(super) fn without_empty_optionals(batch: RecordBatch, is_optional: &[bool]) -> RecordBatch {
    let is_null = |index: usize| batch.column(index).null_count() == batch.num_rows();
    let kept: Vec<usize> =
        (0..batch.num_columns()).filter(|index| !is_optional[*index] || !is_null(*index)).collect();
    batch.project(&kept).expect("what is kept is among the columns")
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
        expected: C::data_type().to_string(),
        found,
    };
    let Some(array) = batch.column_by_name(name) else {
        let rows: Option<Vec<C>> = (0..batch.num_rows()).map(|_| C::default_if_missing()).collect();
        return rows.filter(|_| C::default_if_missing().is_some()).ok_or_else(|| wrong("none".into()));
    };
    let mut array = array.clone();
    if array.data_type() != &C::data_type() {
        if !is_castable(array.data_type(), &C::data_type()) {
            return Err(wrong(array.data_type().to_string()));
        }
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        array = cast_with_options(&array, &C::data_type(), &strict)
            .map_err(|problem| wrong(format!("{}: {problem}", array.data_type())))?;
    }
    if !C::nullable() && array.null_count() > 0 {
        return Err(wrong(format!("{} with nulls", array.data_type())));
    }
    Ok(C::values(array.as_ref()))
}

/// Writes rows as one Parquet file and syncs it to disk.
pub fn write<T: Table>(path: &Path, rows: &[T]) -> Result<(), DataError> {
    let wrap = |source| DataError::Write { path: path.to_owned(), source };
    let file = File::create(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("mcprl".into())
        .build();
    let batch = T::to_batch(rows);
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).map_err(wrap)?;
    writer.write(&batch).map_err(wrap)?;
    let file = writer.into_inner().map_err(wrap)?;
    file.sync_all().map_err(|source| wrap(source.into()))
}

/// Reads every row of a Parquet file. Unknown columns are ignored.
pub fn read<T: Table>(path: &Path) -> Result<Vec<T>, DataError> {
    let file = File::open(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let wrap = |source| DataError::Read { path: path.to_owned(), table: T::NAME, source };
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(wrap)?.build().map_err(wrap)?;
    let mut rows = Vec::new();
    for batch in reader {
        let batch =
            batch.map_err(|source| DataError::Batch { path: path.to_owned(), table: T::NAME, source })?;
        rows.extend(T::from_batch(&batch, path)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
