"""Town library: books, copies, members, loans and holds."""

from datetime import date, timedelta
from typing import Annotated, Literal

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from pydantic import BaseModel, Field

mcp = FastMCP("Town Library")

READ = {"readOnlyHint": True}
WRITE = {"readOnlyHint": False, "destructiveHint": False}
DELETE = {"readOnlyHint": False, "destructiveHint": True}

MAX_LOANS = 4
MAX_FINE = 10.0


class Book(BaseModel):
    id: int
    title: str
    author: str
    year: int
    language: str
    shelf: str
    pages: int


class Copy(BaseModel):
    barcode: str
    book_id: int
    state: Literal["available", "on_loan", "repair"]
    branch: str


class Member(BaseModel):
    card: str
    name: str
    town: str
    joined: date
    fines: float
    email: str | None = None


class Loan(BaseModel):
    id: int
    barcode: str
    title: str
    card: str
    taken: date
    due: date
    renewals: int = 0


class Hold(BaseModel):
    id: int
    book_id: int
    card: str
    placed: date


class BookDetails(Book):
    copies: list[Copy]
    holds: int


class MemberDetails(Member):
    loans: list[Loan]
    holds: list[Hold]


# title, author, year, language, shelf, pages, number of copies
_BOOKS = [
    ("One Hundred Years of Solitude", "Gabriel García Márquez", 1967, "English", "F-MAR", 417, 2),
    ("Cien años de soledad", "Gabriel García Márquez", 1967, "Spanish", "F-MAR", 471, 1),
    ("Love in the Time of Cholera", "Gabriel García Márquez", 1985, "English", "F-MAR", 348, 1),
    ("The Master and Margarita", "Mikhail Bulgakov", 1967, "English", "F-BUL", 384, 2),
    ("Smilla's Sense of Snow", "Peter Høeg", 1992, "English", "F-HOE", 453, 1),
    ("Le Petit Prince", "Antoine de Saint-Exupéry", 1943, "French", "C-SAI", 96, 2),
    ("The Little Prince", "Antoine de Saint-Exupéry", 1943, "English", "C-SAI", 96, 3),
    ("Ronja the Robber's Daughter", "Astrid Lindgren", 1981, "English", "C-LIN", 176, 1),
    ("Pippi Longstocking", "Astrid Lindgren", 1945, "English", "C-LIN", 160, 2),
    ("The Left Hand of Darkness", "Ursula K. Le Guin", 1969, "English", "SF-LEG", 304, 1),
    ("A Wizard of Earthsea", "Ursula K. Le Guin", 1968, "English", "SF-LEG", 205, 2),
    ("The Dispossessed", "Ursula K. Le Guin", 1974, "English", "SF-LEG", 387, 1),
    ("Solaris", "Stanisław Lem", 1961, "English", "SF-LEM", 204, 1),
    ("The Cyberiad", "Stanisław Lem", 1965, "English", "SF-LEM", 295, 1),
    ("Things Fall Apart", "Chinua Achebe", 1958, "English", "F-ACH", 209, 2),
    ("Half of a Yellow Sun", "Chimamanda Ngozi Adichie", 2006, "English", "F-ADI", 433, 1),
    ("Americanah", "Chimamanda Ngozi Adichie", 2013, "English", "F-ADI", 477, 2),
    ("Kafka on the Shore", "Haruki Murakami", 2002, "English", "F-MUR", 505, 1),
    ("Norwegian Wood", "Haruki Murakami", 1987, "English", "F-MUR", 296, 2),
    ("The Housekeeper and the Professor", "Yōko Ogawa", 2003, "English", "F-OGA", 180, 1),
    ("Die Verwandlung", "Franz Kafka", 1915, "German", "F-KAF", 70, 1),
    ("Der Process", "Franz Kafka", 1925, "German", "F-KAF", 280, 1),
    ("Momo", "Michael Ende", 1973, "German", "C-END", 304, 1),
    ("The Neverending Story", "Michael Ende", 1979, "English", "C-END", 396, 2),
    ("Salt, Fat, Acid, Heat", "Samin Nosrat", 2017, "English", "641-NOS", 469, 1),
    ("A Brief History of Time", "Stephen Hawking", 1988, "English", "523-HAW", 212, 2),
    ("Cosmos", "Carl Sagan", 1980, "English", "523-SAG", 396, 1),
    ("The Emperor of All Maladies", "Siddhartha Mukherjee", 2010, "English", "616-MUK", 592, 1),
    ("Silent Spring", "Rachel Carson", 1962, "English", "363-CAR", 378, 1),
    ("Sapiens", "Yuval Noah Harari", 2011, "English", "909-HAR", 498, 3),
    ("The Diary of a Young Girl", "Anne Frank", 1947, "English", "940-FRA", 283, 1),
    ("Persepolis", "Marjane Satrapi", 2000, "French", "741-SAT", 365, 1),
    ("Maus", "Art Spiegelman", 1991, "English", "741-SPI", 296, 1),
    ("Blindness", "José Saramago", 1995, "English", "F-SAR", 352, 0),
]
BOOKS: dict[int, Book] = {}
COPIES: dict[str, Copy] = {}
for i, (title, author, year, language, shelf, pages, count) in enumerate(_BOOKS, start=1):
    BOOKS[i] = Book(id=i, title=title, author=author, year=year, language=language, shelf=shelf, pages=pages)
    for n in range(count):
        barcode = f"00{i * 37 + 1000 + n * 5}"
        branch = ("Centre", "Harbour", "Northfield")[(i + n) % 3]
        COPIES[barcode] = Copy(barcode=barcode, book_id=i, state="available", branch=branch)

MEMBERS: dict[str, Member] = {
    card: Member(card=card, name=name, town=town, joined=date.fromisoformat(joined), fines=fines, email=email)
    for card, name, town, joined, fines, email in [
        ("L0012", "Agnès Moreau", "Portham", "2014-03-02", 0.0, "agnes.moreau@post.example"),
        ("L0019", "Dmitri Volkov", "Portham", "2015-11-20", 12.4, "dvolkov@post.example"),
        ("L0023", "Siobhán Kelly", "Eastlow", "2016-01-15", 0.0, None),
        ("L0031", "Mateus Araújo", "Portham", "2017-06-30", 2.5, "mateus@post.example"),
        ("L0038", "Hanna Björk", "Millbeck", "2018-02-11", 0.0, "hanna.bjork@post.example"),
        ("L0040", "Grace Adeyemi", "Portham", "2018-09-05", 0.0, "grace.a@post.example"),
        ("L0044", "Tom Whitfield", "Eastlow", "2019-04-22", 0.75, None),
        ("L0051", "Tomas Whitley", "Millbeck", "2019-10-01", 0.0, "whitley.t@post.example"),
        ("L0057", "Leila Haddad", "Portham", "2020-07-19", 5.0, "leila@post.example"),
        ("L0062", "Kenji Mori", "Eastlow", "2021-03-08", 0.0, "kmori@post.example"),
        ("L0069", "Nadia Petrović", "Portham", "2021-12-13", 18.0, None),
        ("L0075", "Oscar Lund", "Millbeck", "2022-05-27", 0.0, "oscar.lund@post.example"),
        ("L0080", "Rosa Delgado", "Eastlow", "2023-01-09", 1.25, "rosa.d@post.example"),
        ("L0086", "Iain MacLeod", "Portham", "2023-08-16", 0.0, "iain@post.example"),
        ("L0093", "Beatriz Nunes", "Portham", "2024-02-29", 0.0, "bia.nunes@post.example"),
        ("L0101", "Wei Zhang", "Millbeck", "2025-06-03", 0.0, "wei.zhang@post.example"),
    ]
}

LOANS: dict[int, Loan] = {}
for loan_id, barcode, card, taken, due, renewals in [
    (501, "001037", "L0012", "2026-09-01", "2026-09-22", 0),
    (502, "001148", "L0012", "2026-09-08", "2026-09-29", 0),
    (503, "001222", "L0038", "2026-08-20", "2026-10-01", 1),
    (504, "001259", "L0040", "2026-09-03", "2026-09-24", 0),
    (505, "001264", "L0093", "2026-09-10", "2026-10-01", 0),
    (506, "001407", "L0062", "2026-08-11", "2026-10-13", 2),
    (507, "001370", "L0062", "2026-09-02", "2026-09-23", 0),
    (508, "001481", "L0019", "2026-07-06", "2026-07-27", 0),
    (509, "001629", "L0086", "2026-09-12", "2026-10-03", 0),
    (510, "001666", "L0057", "2026-09-05", "2026-09-26", 0),
    (511, "001703", "L0038", "2026-09-09", "2026-09-30", 0),
    (512, "002110", "L0040", "2026-08-28", "2026-09-18", 0),
    (513, "002115", "L0044", "2026-09-04", "2026-09-25", 0),
    (514, "002120", "L0075", "2026-09-11", "2026-10-02", 0),
    (515, "001925", "L0057", "2026-09-05", "2026-09-26", 0),
    (516, "002184", "L0062", "2026-09-13", "2026-10-04", 0),
    (517, "001814", "L0101", "2026-09-07", "2026-09-28", 0),
    (518, "002221", "L0062", "2026-09-13", "2026-10-04", 0),
]:
    LOANS[loan_id] = Loan(
        id=loan_id,
        barcode=barcode,
        title=BOOKS[COPIES[barcode].book_id].title,
        card=card,
        taken=date.fromisoformat(taken),
        due=date.fromisoformat(due),
        renewals=renewals,
    )
    COPIES[barcode].state = "on_loan"
for barcode in ("001555", "001962", "001296"):
    COPIES[barcode].state = "repair"

HOLDS: dict[int, Hold] = {
    hold_id: Hold(id=hold_id, book_id=book_id, card=card, placed=date.fromisoformat(placed))
    for hold_id, book_id, card, placed in [
        (71, 30, "L0093", "2026-09-12"),
        (72, 30, "L0031", "2026-09-13"),
        (73, 10, "L0023", "2026-09-10"),
        (74, 18, "L0051", "2026-09-14"),
        (75, 6, "L0086", "2026-09-14"),
        (76, 34, "L0023", "2026-08-30"),
        (77, 32, "L0012", "2026-09-15"),
    ]
}

Card = Annotated[str, Field(description="Number on the member's card, for example L0012")]
Barcode = Annotated[str, Field(description="Barcode of a copy, with its leading zeros")]


def member_of(card: str) -> Member:
    if card not in MEMBERS:
        raise ToolError(f"No member has the card {card}.")
    return MEMBERS[card]


def book_of(book_id: int) -> Book:
    if book_id not in BOOKS:
        raise ToolError(f"There is no book {book_id}.")
    return BOOKS[book_id]


def copies_of(book_id: int) -> list[Copy]:
    return [c for c in COPIES.values() if c.book_id == book_id]


@mcp.tool(annotations=READ)
def search_books(
    title: Annotated[str | None, Field(description="Part of the title")] = None,
    author: Annotated[str | None, Field(description="Part of the author's name")] = None,
    language: Annotated[str | None, Field(description="English, French, German or Spanish")] = None,
    published_before: Annotated[int | None, Field(description="Only books first published before this year")] = None,
) -> list[Book]:
    """Search the catalogue. Without any filter, the whole catalogue is returned."""
    return [
        b
        for b in BOOKS.values()
        if (title is None or title.casefold() in b.title.casefold())
        and (author is None or author.casefold() in b.author.casefold())
        and (language is None or language.casefold() == b.language.casefold())
        and (published_before is None or b.year < published_before)
    ]


@mcp.tool(annotations=READ)
def get_book(book_id: Annotated[int, Field(description="Number of the book in the catalogue")]) -> BookDetails:
    """A book with all its copies (where they are and whether they can be borrowed) and how many people wait for it."""
    book = book_of(book_id)
    return BookDetails(
        **book.model_dump(), copies=copies_of(book_id), holds=sum(h.book_id == book_id for h in HOLDS.values())
    )


@mcp.tool(annotations=READ)
def find_members(
    name: Annotated[str | None, Field(description="Part of the name")] = None,
    town: Annotated[str | None, Field(description="Town the member lives in")] = None,
) -> list[Member]:
    """Find members by name or town."""
    return [
        m
        for m in MEMBERS.values()
        if (name is None or name.casefold() in m.name.casefold())
        and (town is None or town.casefold() == m.town.casefold())
    ]


@mcp.tool(annotations=READ)
def get_member(card: Card) -> MemberDetails:
    """A member with current loans and holds."""
    member = member_of(card)
    return MemberDetails(
        **member.model_dump(),
        loans=[loan for loan in LOANS.values() if loan.card == card],
        holds=[hold for hold in HOLDS.values() if hold.card == card],
    )


@mcp.tool(annotations=READ)
def list_loans(
    due_before: Annotated[date | None, Field(description="Only loans due before this day")] = None,
) -> list[Loan]:
    """All current loans, ordered by the day they are due."""
    return sorted(
        (loan for loan in LOANS.values() if due_before is None or loan.due < due_before),
        key=lambda loan: (loan.due, loan.id),
    )


@mcp.tool(annotations=READ)
def list_holds(book_id: int | None = None) -> list[Hold]:
    """The waiting list, of one book or of all, first come first."""
    return [h for h in HOLDS.values() if book_id is None or h.book_id == book_id]


@mcp.tool(annotations=WRITE)
def lend_copy(card: Card, barcode: Barcode) -> Loan:
    """Lend a copy to a member for three weeks.

    Refused if the copy is not available, if the member owes more than 10 in fines or already has four loans.
    """
    member = member_of(card)
    copy = COPIES.get(barcode)
    if copy is None:
        raise ToolError(f"No copy has the barcode {barcode}.")
    if copy.state != "available":
        raise ToolError(f"Copy {barcode} is not available ({copy.state}).")
    if member.fines > MAX_FINE:
        raise ToolError(f"{member.name} owes {member.fines:.2f} and cannot borrow until this is paid.")
    if sum(loan.card == card for loan in LOANS.values()) >= MAX_LOANS:
        raise ToolError(f"{member.name} already has {MAX_LOANS} loans.")
    today = date.today()
    loan = Loan(
        id=max(LOANS, default=500) + 1,
        barcode=barcode,
        title=BOOKS[copy.book_id].title,
        card=card,
        taken=today,
        due=today + timedelta(days=21),
    )
    LOANS[loan.id] = loan
    copy.state = "on_loan"
    for hold in list(HOLDS.values()):
        if hold.book_id == copy.book_id and hold.card == card:
            del HOLDS[hold.id]
    return loan


@mcp.tool(annotations=WRITE)
def return_copy(
    barcode: Barcode, damaged: Annotated[bool, Field(description="Send the copy to repair")] = False
) -> Copy:
    """Take back a copy that was on loan."""
    for loan in list(LOANS.values()):
        if loan.barcode == barcode:
            del LOANS[loan.id]
            COPIES[barcode].state = "repair" if damaged else "available"
            return COPIES[barcode]
    raise ToolError(f"The copy {barcode} is not on loan.")


@mcp.tool(annotations=WRITE)
def renew_loan(loan_id: Annotated[int, Field(description="Number of the loan")]) -> Loan:
    """Extend a loan by three weeks. Not possible more than twice, nor if somebody waits for the book."""
    loan = LOANS.get(loan_id)
    if loan is None:
        raise ToolError(f"There is no loan {loan_id}.")
    if loan.renewals >= 2:
        raise ToolError("This loan was already renewed twice.")
    book_id = COPIES[loan.barcode].book_id
    if any(h.book_id == book_id for h in HOLDS.values()):
        raise ToolError(f"Somebody is waiting for {BOOKS[book_id].title}.")
    loan.due += timedelta(days=21)
    loan.renewals += 1
    return loan


@mcp.tool(annotations=WRITE)
def place_hold(card: Card, book_id: int) -> Hold:
    """Put a member on the waiting list of a book."""
    member_of(card)
    book_of(book_id)
    if any(h.card == card and h.book_id == book_id for h in HOLDS.values()):
        raise ToolError("The member already waits for this book.")
    hold = Hold(id=max(HOLDS, default=70) + 1, book_id=book_id, card=card, placed=date.today())
    HOLDS[hold.id] = hold
    return hold


@mcp.tool(annotations=DELETE)
def cancel_hold(hold_id: int) -> str:
    """Remove a hold from the waiting list."""
    if hold_id not in HOLDS:
        raise ToolError(f"There is no hold {hold_id}.")
    del HOLDS[hold_id]
    return f"Hold {hold_id} cancelled."


@mcp.tool(annotations=WRITE)
def pay_fine(card: Card, amount: Annotated[float, Field(gt=0, description="Amount paid")]) -> Member:
    """Record a payment of a member's fines. Paying more than is owed is refused."""
    member = member_of(card)
    if amount > member.fines:
        raise ToolError(f"{member.name} owes only {member.fines:.2f}.")
    member.fines = round(member.fines - amount, 2)
    return member


if __name__ == "__main__":
    mcp.run()
