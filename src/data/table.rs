//! Rows as structs, columns as Arrow arrays, files as Parquet.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, BooleanBuilder, ListBuilder, PrimitiveBuilder, RecordBatch, StringBuilder,
    },
    datatypes::{
        ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Int64Type, SchemaRef, UInt32Type,
        UInt64Type,
    },
};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    basic::Compression,
    file::properties::WriterProperties,
};

use crate::error::Diagnostic;

/// What can be wrong with a table on disk.
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
        source: arrow::error::ArrowError,
    },
    #[error("{path}: the {table} table needs a column `{column}` of type {expected}, found {found}")]
    Column { path: PathBuf, table: &'static str, column: &'static str, expected: String, found: String },
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
            Self::Write { .. } => "data::write",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Column { .. } => Some(
                "the file was written by another version or by a stage that does not keep the contract"
                    .into(),
            ),
            Self::Read { .. } | Self::Batch { .. } => {
                Some("the file is truncated or not Parquet; delete it and run again".into())
            }
            Self::Write { .. } => Some("is the disk full, or the folder read-only?".into()),
            Self::Open { .. } => None,
        }
    }
}

/// A type that can be a column.
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
    /// What every row has where a file lacks the column. A column that can be lacking is left out of a file in which it
    /// is null throughout.
    fn lacking() -> Option<Self> {
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

/// Indices, in few tables and few of their rows.
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
    fn lacking() -> Option<Self> {
        Some(None)
    }
}

/// A kind of row. Declared with the `table!` macro, never by hand.
pub trait Table: Sized {
    /// The table's name in messages.
    const NAME: &'static str;
    fn schema() -> SchemaRef;
    fn to_batch(rows: &[Self]) -> RecordBatch;
    fn from_batch(batch: &RecordBatch, path: &Path) -> Result<Vec<Self>, DataError>;
}

/// Declares a row struct together with its Arrow schema; the doc comment of a field becomes the column's metadata.
macro_rules! table {
    (
        $(#[$meta:meta])*
        $name:ident in $table:literal {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl $crate::data::Table for $name {
            const NAME: &'static str = $table;

            fn schema() -> arrow::datatypes::SchemaRef {
                use $crate::data::Column;
                std::sync::Arc::new(arrow::datatypes::Schema::new(vec![
                    $( arrow::datatypes::Field::new(
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

            fn to_batch(rows: &[Self]) -> arrow::array::RecordBatch {
                use $crate::data::Column;
                let columns = vec![$( <$type as Column>::build(rows.iter().map(|row| &row.$field)), )+];
                let batch = arrow::array::RecordBatch::try_new(Self::schema(), columns)
                    .expect("columns are built from the schema they are checked against");
                let can_lack = [$( <$type as Column>::lacking().is_some(), )+];
                $crate::data::table::without_lacking(batch, &can_lack)
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

/// Without the columns that can be lacking and are null throughout.
pub(super) fn without_lacking(batch: RecordBatch, can_lack: &[bool]) -> RecordBatch {
    let is_null = |index: usize| batch.column(index).null_count() == batch.num_rows();
    let kept: Vec<usize> =
        (0..batch.num_columns()).filter(|index| !can_lack[*index] || !is_null(*index)).collect();
    batch.project(&kept).expect("what is kept is among the columns")
}

/// The values of one column, its type checked first.
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
        let rows: Option<Vec<C>> = (0..batch.num_rows()).map(|_| C::lacking()).collect();
        return rows.filter(|_| C::lacking().is_some()).ok_or_else(|| wrong("none".into()));
    };
    if array.data_type() != &C::data_type() {
        return Err(wrong(array.data_type().to_string()));
    }
    if !C::nullable() && array.null_count() > 0 {
        return Err(wrong(format!("{} with nulls", array.data_type())));
    }
    Ok(C::values(array))
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

/// Reads every row of a Parquet file. Columns the table does not know are ignored.
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
mod tests {
    use super::*;

    table! {
        /// A row with a column of every type.
        Sample in "sample" {
            /// A text.
            text: String,
            /// Perhaps a text.
            note: Option<String>,
            /// A number.
            score: f32,
            /// Token ids.
            tokens: Vec<u32>,
            /// A mask.
            mask: Vec<bool>,
            /// Names.
            names: Vec<String>,
            /// Perhaps a bit.
            correct: Option<bool>,
        }
    }

    table! {
        /// The same with another type in one column.
        Other in "other" {
            /// A number where a text was.
            text: u32,
        }
    }

    fn rows() -> Vec<Sample> {
        vec![
            Sample {
                text: "a".into(),
                note: None,
                score: -0.5,
                tokens: vec![],
                mask: vec![true],
                names: vec!["é".into()],
                correct: Some(false),
            },
            Sample {
                text: String::new(),
                note: Some("n".into()),
                score: f32::MIN_POSITIVE,
                tokens: vec![1, 2],
                mask: vec![],
                names: vec![],
                correct: None,
            },
        ]
    }

    #[test]
    fn rows_survive_a_file_and_equal_rows_are_equal_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1.parquet"), folder.path().join("2.parquet"));
        write(&one, &rows()).unwrap();
        write(&two, &rows()).unwrap();
        assert_eq!(read::<Sample>(&one).unwrap(), rows());
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
    }

    table! {
        /// A row that may have indices.
        Marked in "marked" {
            /// A text.
            text: String,
            /// Indices, in few rows.
            marks: Option<Vec<u32>>,
        }
    }

    table! {
        /// The same without.
        Plain in "plain" {
            /// A text.
            text: String,
        }
    }

    #[test]
    fn indices_that_no_row_has_take_no_column_and_are_read_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("1.parquet"), folder.path().join("2.parquet"));
        let row = |marks: Option<Vec<u32>>| Marked { text: "a".into(), marks };
        let few = [row(Some(vec![3, 5])), row(None), row(Some(vec![]))];
        write(&one, &few).unwrap();
        assert_eq!(read::<Marked>(&one).unwrap(), few);
        write(&one, &[row(None)]).unwrap();
        write(&two, &[Plain { text: "a".into() }]).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
        assert_eq!(read::<Marked>(&two).unwrap(), [row(None)]);
    }

    #[test]
    fn an_empty_table_is_a_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.parquet");
        write::<Sample>(&path, &[]).unwrap();
        assert_eq!(read::<Sample>(&path).unwrap(), []);
    }

    #[test]
    fn a_column_of_another_type_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        write(&path, &rows()).unwrap();
        let error = read::<Other>(&path).unwrap_err();
        assert_eq!(error.code(), "data::column");
        assert!(error.to_string().contains("column `text` of type UInt32, found Utf8"), "{error}");
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        write(&path, &rows()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for keep in [0, 4, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..keep]).unwrap();
            assert_eq!(read::<Sample>(&path).unwrap_err().code(), "data::unreadable");
        }
    }
}
