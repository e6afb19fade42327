use super::*;

table! {
    /// A row with a column of every type.
    Sample in "sample" {
        /// A text.
        text: String,
        /// An optional text.
        note: Option<String>,
        /// A number.
        score: f32,
        /// Token ids.
        tokens: Vec<u32>,
        /// A mask.
        mask: Vec<bool>,
        /// Names.
        names: Vec<String>,
        /// An optional bool.
        correct: Option<bool>,
    }
}

table! {
    /// The same table with another type in one column.
    Other in "other" {
        /// A number instead of a text.
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
fn rows_round_trip_through_a_file_and_equal_rows_give_equal_bytes() {
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
fn an_optional_column_that_is_null_everywhere_is_not_written() {
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

/// Rows with texts and lists of many lengths.
fn varied(count: usize) -> Vec<Sample> {
    let row = |index: usize| Sample {
        text: "t".repeat(index % 7),
        note: index.is_multiple_of(3).then(|| "n".repeat(index % 50)),
        tokens: (0..index as u32 % 9).collect(),
        names: vec!["name".into(); index % 4],
        ..Sample::default()
    };
    (0..count).map(row).collect()
}

#[test]
fn a_table_is_cut_by_rows_and_bytes_and_reads_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let rows = varied(600);
    for (most_rows, most_bytes) in
        [(1, CUT.bytes), (7, CUT.bytes), (CUT.rows, 500), (CUT.rows, 1), (600, CUT.bytes)]
    {
        let cut = Cut { rows: most_rows, bytes: most_bytes, ..CUT };
        let batches = batches(&rows, cut).unwrap();
        for batch in &batches {
            let bytes: usize = batch.iter().map(Record::bytes).sum();
            assert!(batch.len() <= most_rows && (bytes <= most_bytes || batch.len() == 1), "{cut:?}");
        }
        assert_eq!(batches.concat(), rows);
        write_cut(&path, &rows, cut).unwrap();
        assert_eq!(read::<Sample>(&path).unwrap(), rows, "{cut:?}");
        assert_eq!(
            read_part::<Sample>(&path, Some(&[3, 599])).unwrap(),
            [rows[3].clone(), rows[599].clone()]
        );
    }
}

#[test]
fn the_bytes_of_a_row_are_those_of_its_arrays() {
    let of = |count: usize| -> usize { varied(count).iter().map(Record::bytes).sum() };
    let text = Sample { text: "x".repeat(1000), ..Sample::default() };
    assert_eq!(text.bytes() - Sample::default().bytes(), 1000);
    // Each array also has one offset more than rows, and bits for nulls.
    let array: usize =
        to_batch(&varied(5000)).columns().iter().map(|column| column.get_buffer_memory_size()).sum();
    assert!(of(5000).abs_diff(array) < array / 5, "{} {array}", of(5000));
}

#[test]
fn a_column_that_only_a_later_batch_uses_is_written_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let row = |marks: Option<Vec<u32>>| Marked { text: "a".into(), marks };
    let rows = [row(None), row(None), row(Some(vec![3]))];
    write_cut(&path, &rows, Cut { rows: 1, ..CUT }).unwrap();
    assert_eq!(read::<Marked>(&path).unwrap(), rows);
}

#[test]
fn a_row_that_no_page_can_hold_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let rows = [Sample::default(), Sample { text: "x".repeat(5000), ..Sample::default() }];
    let error = write_cut(&path, &rows, Cut { largest_row: 4096, ..CUT }).unwrap_err();
    assert_eq!(error.code(), "data::too_large");
    assert!(error.to_string().starts_with("row 1 of the sample table has"), "{error}");
    assert!(CUT.bytes + CUT.largest_row < i32::MAX as usize, "a batch and a page fit 32 bits");
}

#[test]
fn tables_are_read_with_64_bit_offsets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path, &rows()).unwrap();
    let batch = open(&path, "sample").unwrap().build().unwrap().next().unwrap().unwrap();
    for column in batch.columns() {
        assert_eq!(&widened(column.data_type()), column.data_type());
    }
    assert_eq!(batch.column_by_name("text").unwrap().data_type(), &DataType::LargeUtf8);
}

#[test]
fn an_empty_table_can_be_read() {
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

record! {
    /// A part of a row.
    #[derive(serde::Serialize, serde::Deserialize)]
    Part {
        /// A name.
        name: String,
        /// A number that may be missing.
        count: Option<u32>,
        /// Fields.
        fields: Map<String, Value>,
        /// A part that may be missing, with a value that may not.
        inner: Option<Inner>,
    }
}

record! {
    /// A part of a part.
    #[derive(serde::Serialize, serde::Deserialize)]
    Inner {
        /// A number.
        number: u32,
        /// Texts.
        names: Vec<String>,
    }
}

table! {
    /// A row with parts.
    Parted in "parted" {
        /// A list of parts.
        parts: Vec<Part>,
    }
}

fn parts() -> Vec<Parted> {
    let inner = Inner { number: 7, names: vec!["é".into(), "b".into()] };
    let fields = serde_json::json!({"a": [1, null]}).as_object().unwrap().clone();
    let part = Part { name: "x".into(), count: Some(3), fields, inner: Some(inner) };
    let plain = Part { name: "y".into(), ..Part::default() };
    vec![Parted { parts: vec![part.clone(), plain] }, Parted::default(), Parted { parts: vec![part] }]
}

#[test]
fn rows_with_parts_round_trip_whatever_is_missing_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path, &parts()).unwrap();
    assert_eq!(read::<Parted>(&path).unwrap(), parts());
    assert_eq!(read_part::<Parted>(&path, Some(&[1, 2])).unwrap(), parts()[1..]);
    let batch = open(&path, "parted").unwrap().build().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.column(0).data_type(), &widened(batch.column(0).data_type()));
}

/// Parts of another writer, with these values.
macro_rules! others {
    ($test:ident { $($field:ident: $type:ty = $value:expr),+ }) => {{
        record! {
            /// Of another writer.
            #[derive(serde::Serialize, serde::Deserialize)]
            Foreign { $( /// A value.
                $field: $type, )+ }
        }
        table! {
            /// Of another writer.
            Foreigns in "parted" {
                /// Parts.
                parts: Vec<Foreign>,
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let foreign = Foreign { $($field: $value),+ };
        write(&path, &[Foreigns { parts: vec![foreign] }]).unwrap();
        $test(&path)
    }};
}

#[test]
fn parts_are_read_by_name_and_one_of_another_type_is_named() {
    let read_parts = |path: &Path| read::<Parted>(path).unwrap().remove(0).parts;
    let found = others!(read_parts {
        fields: String = "{}".into(),
        unknown: f32 = 0.5,
        name: String = "x".into(),
        count: u64 = 3
    });
    assert_eq!(found, [Part { name: "x".into(), count: Some(3), ..Part::default() }]);
    let problem = |path: &Path| {
        let error = read::<Parted>(path).unwrap_err();
        assert_eq!(error.code(), "data::column");
        error.to_string().split_once(": the ").unwrap().1.to_owned()
    };
    let table = "parted table needs a column `parts";
    assert_eq!(
        others!(problem { name: String = "x".into() }),
        format!("{table}.fields` of type Utf8, found none")
    );
    assert_eq!(
        others!(problem { name: u32 = 1, fields: String = "{}".into() }),
        format!("{table}.name` of type Utf8, found UInt32")
    );
    assert_eq!(
        others!(problem { name: Option<String> = None, fields: String = "{}".into() }),
        format!("{table}.name` of type Utf8, found Utf8 with nulls")
    );
    assert_eq!(
        others!(problem { name: String = "x".into(), fields: String = "[1]".into() }),
        format!("{table}.fields` of type a JSON object, found \"[1]\"")
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    write(&path, &rows()).unwrap();
    assert!(problem(&path).starts_with(&format!("{table}` of type List(")), "{}", problem(&path));
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

#[test]
fn tables_of_polars_pyarrow_and_duckdb_are_read_in_any_width_and_layout() {
    for writer in ["polars", "pyarrow", "duckdb"] {
        let path = fixture(&format!("{writer}.parquet"));
        assert_eq!(read::<Sample>(&path).unwrap(), rows(), "{writer}");
    }
}

#[test]
fn a_number_that_does_not_fit_its_column_is_refused() {
    let error = read::<Sample>(&fixture("negative_token.parquet")).unwrap_err();
    assert_eq!(error.code(), "data::column");
    assert!(error.to_string().contains("column `tokens`"), "{error}");
}

#[test]
fn a_missing_value_within_a_list_is_refused() {
    let error = read::<Sample>(&fixture("missing_name.parquet")).unwrap_err();
    assert_eq!(error.code(), "data::column");
    assert!(error.to_string().contains("column `names`"), "{error}");
}

/// Written by `tests/reference/tables.py`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/fixtures/tables").join(name)
}

#[test]
fn a_reward_that_is_not_finite_is_reported_with_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rewards.parquet");
    let check = |values: &[f32]| {
        let reward = |reward: &f32| crate::data::Reward {
            trajectory_id: "t".into(),
            scenario_id: "s".into(),
            reward: *reward,
            correct: None,
            components: "{}".into(),
            explanation: None,
        };
        write(&path, &values.iter().map(reward).collect::<Vec<_>>()).unwrap();
        crate::data::check("rewards", &path).map_err(|wrong| wrong.to_string())
    };
    assert_eq!(check(&[0.0, -1.5]), Ok(()));
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        assert_eq!(check(&[0.0, value]), Err(format!("{}: `reward` of row 1 is {shown}", path.display())));
    }
}

#[test]
fn a_part_of_a_table_is_read_by_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let sample = |number: u32| Sample {
        text: format!("row {number}"),
        tokens: vec![number; 100],
        ..Sample::default()
    };
    write(&path, &(0..5000).map(sample).collect::<Vec<_>>()).unwrap();
    let texts = |rows: Option<&[usize]>| -> Vec<String> {
        read_part::<Plain>(&path, rows).unwrap().into_iter().map(|row| row.text).collect()
    };
    assert_eq!(texts(Some(&[0, 7, 4999, 5000])), ["row 0", "row 7", "row 4999"]);
    assert_eq!(texts(Some(&[])), [""; 0]);
    assert_eq!(texts(None).len(), 5000);
    assert_eq!(read_part::<Sample>(&path, Some(&[3])).unwrap(), [sample(3)]);
    assert_eq!(read_part::<Other>(&path, None).unwrap_err().code(), "data::column");
}
