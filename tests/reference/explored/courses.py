"""A university. Results are structured, ids have 13 digits, searches stop at three and lists of students at ten unless told otherwise."""

import json
import random
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError

DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
mcp = FastMCP("courses", version="1.0")


@mcp.tool
def search_courses(query: str, limit: int = 3) -> list[dict[str, Any]]:
    """Search courses by a word of the title, such as 'Theory'."""
    found = [course for course in DATA["courses"] if query.lower() in course["title"].lower()]
    return [{key: course[key] for key in ("course_id", "title", "credits")} for course in found[:limit]]


@mcp.tool
def get_course(course_id: int) -> dict[str, Any]:
    """Get the details of a course."""
    for course in DATA["courses"]:
        if course["course_id"] == course_id:
            return course
    raise ToolError("no such course")


@mcp.tool
def courses_of_teacher(teacher_id: str) -> list[dict[str, Any]]:
    """List all courses of a teacher."""
    keys = ("course_id", "title", "credits", "seats", "fee", "starts")
    return [{key: course[key] for key in keys} for course in DATA["courses"] if course["teacher_id"] == teacher_id]


@mcp.tool
def list_teachers() -> list[dict[str, Any]]:
    """List all teachers."""
    return DATA["teachers"]


@mcp.tool
def students_of_course(course_id: int, limit: int = 10) -> list[dict[str, Any]]:
    """List the students of a course."""
    numbers = [number for course, number in DATA["enrolled"] if course == course_id]
    return [student for student in DATA["students"] if student["student_no"] in numbers][:limit]


@mcp.tool
def course_of_the_day() -> dict[str, Any]:
    """Get the course of the day."""
    course = random.choice(DATA["courses"])
    return {"course_id": course["course_id"], "title": course["title"]}


if __name__ == "__main__":
    mcp.run(show_banner=False)
