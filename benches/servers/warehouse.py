# Warehouse server: items, bins, stock, deliveries and picks.
# Everything answers with JSON text or one line; problems come back as text that starts with "ERROR".

import json
from datetime import datetime

from fastmcp import FastMCP

mcp = FastMCP("warehouse")

items = {}
for row in """
00117|Hex bolt M8x40, zinc|fasteners|0.14|Schrauben Müller|500
00118|Hex bolt M10x60, zinc|fasteners|0.23|Schrauben Müller|500
00125|Wood screw 4x50, brass|fasteners|0.09|Schrauben Müller|1000
00131|Washer M8|fasteners|0.03|Schrauben Müller|1000
00204|Claw hammer 450 g|hand tools|18.90|Håndverk AS|20
00207|Spirit level 60 cm|hand tools|24.50|Håndverk AS|10
00211|Tape measure 5 m|hand tools|7.95|Håndverk AS|40
00215|Chisel set, 4 pieces|hand tools|39.00|Ateliers Géraud|8
00219|Japanese pull saw|hand tools|32.40|Ateliers Géraud|6
00302|Cordless drill 18 V|power tools|129.00|Voltiq|10
00305|Angle grinder 125 mm|power tools|84.90|Voltiq|6
00309|Jigsaw 650 W|power tools|97.50|Voltiq|6
00314|Battery 18 V 4 Ah|power tools|62.00|Voltiq|25
00401|Masonry paint, white, 10 l|paint|48.75|Colores Íñigo|15
00402|Masonry paint, ochre, 10 l|paint|52.25|Colores Íñigo|15
00408|Wood varnish, clear, 1 l|paint|14.20|Colores Íñigo|30
00413|Paint roller 25 cm|paint|6.40||50
00416|Masking tape 50 m|paint|3.15||80
00501|Work gloves, size 9|safety|4.80|Tarcza|100
00502|Work gloves, size 10|safety|4.80|Tarcza|100
00507|Safety helmet, yellow|safety|16.30|Tarcza|20
00511|Ear defenders 28 dB|safety|21.00|Tarcza|15
00516|Dust mask FFP2, box of 20|safety|18.60|Tarcza|30
00603|LED work light 30 W|electrical|34.90|Voltiq|12
00607|Cable reel 25 m|electrical|44.00|Voltiq|8
00611|Junction box IP65|electrical|3.75||60
00702|Silicone sealant, white|adhesives|5.60|Ateliers Géraud|48
00705|Wood glue 750 g|adhesives|8.90|Ateliers Géraud|24
00709|Epoxy, two parts, 50 ml|adhesives|11.35|Ateliers Géraud|24
00801|Garden hose 20 m|garden|27.80|Håndverk AS|10
00806|Pruning shears|garden|19.95|Håndverk AS|15
00810|Snow shovel|garden|22.50|Håndverk AS|0
""".strip().splitlines():
    sku, name, category, price, supplier, minimum = row.split("|")
    items[sku] = {
        "sku": sku,
        "name": name,
        "category": category,
        "unitPrice": float(price),
        "supplier": supplier,
        "minStock": int(minimum),
    }

# code: zone, how many pieces fit
bins = {
    "A-01": {"code": "A-01", "zone": "small parts", "capacity": 6000, "blocked": False},
    "A-02": {"code": "A-02", "zone": "small parts", "capacity": 6000, "blocked": False},
    "A-03": {"code": "A-03", "zone": "small parts", "capacity": 6000, "blocked": True},
    "B-01": {"code": "B-01", "zone": "tools", "capacity": 150, "blocked": False},
    "B-02": {"code": "B-02", "zone": "tools", "capacity": 150, "blocked": False},
    "B-03": {"code": "B-03", "zone": "tools", "capacity": 80, "blocked": False},
    "C-01": {"code": "C-01", "zone": "liquids", "capacity": 100, "blocked": False},
    "C-02": {"code": "C-02", "zone": "liquids", "capacity": 200, "blocked": False},
    "D-01": {"code": "D-01", "zone": "general", "capacity": 400, "blocked": False},
    "D-02": {"code": "D-02", "zone": "general", "capacity": 400, "blocked": False},
    "D-03": {"code": "D-03", "zone": "general", "capacity": 300, "blocked": False},
    "E-01": {"code": "E-01", "zone": "yard", "capacity": 90, "blocked": False},
    "E-02": {"code": "E-02", "zone": "yard", "capacity": 90, "blocked": True},
}

# (bin, sku) -> pieces
stock = {
    ("A-01", "00117"): 1850,
    ("A-01", "00118"): 420,
    ("A-01", "00131"): 2600,
    ("A-02", "00125"): 3200,
    ("A-02", "00117"): 350,
    ("A-03", "00131"): 900,
    ("B-01", "00204"): 34,
    ("B-01", "00207"): 9,
    ("B-01", "00211"): 57,
    ("B-01", "00215"): 11,
    ("B-02", "00302"): 14,
    ("B-02", "00305"): 5,
    ("B-02", "00309"): 8,
    ("B-02", "00314"): 41,
    ("B-03", "00219"): 6,
    ("B-03", "00302"): 3,
    ("B-03", "00314"): 12,
    ("C-01", "00401"): 22,
    ("C-01", "00402"): 7,
    ("C-01", "00408"): 36,
    ("C-02", "00702"): 64,
    ("C-02", "00705"): 18,
    ("C-02", "00709"): 51,
    ("D-01", "00501"): 140,
    ("D-01", "00502"): 86,
    ("D-01", "00516"): 44,
    ("D-02", "00413"): 75,
    ("D-02", "00416"): 210,
    ("D-02", "00507"): 27,
    ("D-03", "00511"): 13,
    ("D-03", "00603"): 16,
    ("D-03", "00607"): 8,
    ("D-03", "00611"): 155,
    ("D-03", "00502"): 30,
    ("E-01", "00801"): 12,
    ("E-01", "00806"): 17,
    ("E-02", "00801"): 4,
}

deliveries = {
    "DLV-0031": {"id": "DLV-0031", "supplier": "Schrauben Müller", "expected": "2026-09-14", "status": "received",
                 "lines": [{"sku": "00131", "quantity": 1000}]},
    "DLV-0032": {"id": "DLV-0032", "supplier": "Voltiq", "expected": "2026-09-17", "status": "received",
                 "lines": [{"sku": "00302", "quantity": 10}, {"sku": "00314", "quantity": 20}]},
    "DLV-0033": {"id": "DLV-0033", "supplier": "Schrauben Müller", "expected": "2026-09-21", "status": "expected",
                 "lines": [{"sku": "00118", "quantity": 800}]},
    "DLV-0034": {"id": "DLV-0034", "supplier": "Colores Íñigo", "expected": "2026-09-22", "status": "expected",
                 "lines": [{"sku": "00402", "quantity": 20}, {"sku": "00408", "quantity": 24}]},
    "DLV-0035": {"id": "DLV-0035", "supplier": "Tarcza", "expected": "2026-09-22", "status": "late",
                 "lines": [{"sku": "00511", "quantity": 15}]},
    "DLV-0036": {"id": "DLV-0036", "supplier": "Voltiq", "expected": "2026-09-25", "status": "expected",
                 "lines": [{"sku": "00305", "quantity": 6}]},
    "DLV-0037": {"id": "DLV-0037", "supplier": "Håndverk AS", "expected": "2026-10-01", "status": "expected",
                 "lines": [{"sku": "00207", "quantity": 12}, {"sku": "00810", "quantity": 30}]},
    "DLV-0038": {"id": "DLV-0038", "supplier": "Ateliers Géraud", "expected": "2026-10-05", "status": "cancelled",
                 "lines": [{"sku": "00705", "quantity": 48}]},
}

picks = {
    "P0901": {"id": "P0901", "customer": "Bau & Söhne", "due": "2026-09-18", "status": "shipped", "picker": "Wojtek",
              "lines": [{"sku": "00302", "quantity": 2}, {"sku": "00314", "quantity": 4}]},
    "P0902": {"id": "P0902", "customer": "Maison Lefèvre", "due": "2026-09-18", "status": "shipped", "picker": "Amara",
              "lines": [{"sku": "00401", "quantity": 6}]},
    "P0903": {"id": "P0903", "customer": "Riverside School", "due": "2026-09-21", "status": "open", "picker": "Amara",
              "lines": [{"sku": "00501", "quantity": 24}, {"sku": "00502", "quantity": 24}]},
    "P0904": {"id": "P0904", "customer": "Bau & Söhne", "due": "2026-09-21", "status": "open", "picker": "",
              "lines": [{"sku": "00117", "quantity": 600}, {"sku": "00131", "quantity": 600}]},
    "P0905": {"id": "P0905", "customer": "O'Neill Roofing", "due": "2026-09-22", "status": "open", "picker": "Wojtek",
              "lines": [{"sku": "00507", "quantity": 10}]},
    "P0906": {"id": "P0906", "customer": "Maison Lefèvre", "due": "2026-09-23", "status": "open", "picker": "",
              "lines": [{"sku": "00402", "quantity": 12}]},
    "P0907": {"id": "P0907", "customer": "Çelik Marina", "due": "2026-09-24", "status": "cancelled", "picker": "",
              "lines": [{"sku": "00709", "quantity": 30}]},
    "P0908": {"id": "P0908", "customer": "Riverside School", "due": "2026-09-28", "status": "open", "picker": "Jun",
              "lines": [{"sku": "00413", "quantity": 15}, {"sku": "00416", "quantity": 40}]},
    "P0909": {"id": "P0909", "customer": "Çelik Marina", "due": "2026-09-29", "status": "open", "picker": "Wojtek",
              "lines": [{"sku": "00702", "quantity": 20}]},
}

movements = []


def out(value):
    return json.dumps(value, ensure_ascii=False, indent=1)


def used(binCode):
    return sum(n for (b, s), n in stock.items() if b == binCode)


def onHand(sku):
    return sum(n for (b, s), n in stock.items() if s == sku)


def move(kind, sku, quantity, binCode):
    stock[(binCode, sku)] = stock.get((binCode, sku), 0) + quantity
    if stock[(binCode, sku)] == 0:
        del stock[(binCode, sku)]
    items[sku]["updatedAt"] = datetime.now().isoformat()
    movements.append({"kind": kind, "sku": sku, "quantity": quantity, "bin": binCode, "at": items[sku]["updatedAt"]})


@mcp.tool
def findItems(nameContains: str = "", category: str = "", supplier: str = "") -> str:
    """find items"""
    result = []
    for item in items.values():
        if nameContains.lower() not in item["name"].lower():
            continue
        if category and item["category"] != category.lower():
            continue
        if supplier and item["supplier"].lower() != supplier.lower():
            continue
        result.append(item)
    return out(result)


@mcp.tool
def getStock(sku: str) -> str:
    """Stock of an item, per bin and in total."""
    if sku not in items:
        return f"ERROR: unknown sku {sku}"
    rows = [{"bin": b, "quantity": n} for (b, s), n in stock.items() if s == sku]
    return out({"sku": sku, "name": items[sku]["name"], "onHand": onHand(sku), "minStock": items[sku]["minStock"], "bins": rows})


@mcp.tool
def getBin(binCode: str) -> str:
    """What is in a bin, how much space it has left"""
    b = bins.get(binCode)
    if not b:
        return f"ERROR: unknown bin {binCode}"
    content = [{"sku": s, "name": items[s]["name"], "quantity": n} for (c, s), n in stock.items() if c == binCode]
    return out({**b, "free": b["capacity"] - used(binCode), "content": content})


@mcp.tool
def listBins(zone: str = "") -> str:
    return out([{**b, "free": b["capacity"] - used(c)} for c, b in bins.items() if not zone or b["zone"] == zone])


@mcp.tool
def lowStock() -> str:
    """Items with less on hand than their minimum"""
    return out([
        {"sku": s, "name": i["name"], "onHand": onHand(s), "minStock": i["minStock"]}
        for s, i in items.items()
        if onHand(s) < i["minStock"]
    ])


@mcp.tool
def listDeliveries(status: str = "", supplier: str = "") -> str:
    """Deliveries. status: expected, late, received, cancelled"""
    return out([
        d for d in deliveries.values()
        if (not status or d["status"] == status) and (not supplier or d["supplier"].lower() == supplier.lower())
    ])


@mcp.tool
def listPicks(status: str = "", customer: str = "", picker: str = "") -> str:
    """Picks (orders to be collected). status: open, shipped, cancelled"""
    return out([
        p for p in picks.values()
        if (not status or p["status"] == status)
        and (not customer or customer.lower() in p["customer"].lower())
        and (not picker or p["picker"].lower() == picker.lower())
    ])


@mcp.tool
def moveStock(sku: str, fromBin: str, toBin: str, quantity: int) -> str:
    """Move pieces of an item from one bin to another."""
    if sku not in items:
        return f"ERROR: unknown sku {sku}"
    for code in (fromBin, toBin):
        if code not in bins:
            return f"ERROR: unknown bin {code}"
    if quantity <= 0:
        return "ERROR: quantity must be positive"
    if stock.get((fromBin, sku), 0) < quantity:
        return f"ERROR: only {stock.get((fromBin, sku), 0)} of {sku} in {fromBin}"
    if bins[toBin]["blocked"]:
        return f"ERROR: bin {toBin} is blocked"
    if used(toBin) + quantity > bins[toBin]["capacity"]:
        return f"ERROR: bin {toBin} has space for {bins[toBin]['capacity'] - used(toBin)} only"
    move("move", sku, -quantity, fromBin)
    move("move", sku, quantity, toBin)
    return f"Moved {quantity} x {items[sku]['name']} from {fromBin} to {toBin}."


@mcp.tool
def receiveDelivery(deliveryId: str, binCode: str) -> str:
    """Book a delivery in: all its lines go into the given bin."""
    d = deliveries.get(deliveryId)
    if not d:
        return f"ERROR: unknown delivery {deliveryId}"
    if d["status"] not in ("expected", "late"):
        return f"ERROR: delivery {deliveryId} is {d['status']}"
    if binCode not in bins:
        return f"ERROR: unknown bin {binCode}"
    if bins[binCode]["blocked"]:
        return f"ERROR: bin {binCode} is blocked"
    total = sum(line["quantity"] for line in d["lines"])
    if used(binCode) + total > bins[binCode]["capacity"]:
        return f"ERROR: bin {binCode} has space for {bins[binCode]['capacity'] - used(binCode)} only"
    for line in d["lines"]:
        move("receive", line["sku"], line["quantity"], binCode)
    d["status"] = "received"
    return f"Delivery {deliveryId} received, {total} pieces put into {binCode}."


@mcp.tool
def shipPick(pickId: str) -> str:
    """Takes the goods of a pick out of the bins and marks it as shipped"""
    p = picks.get(pickId)
    if not p:
        return f"ERROR: unknown pick {pickId}"
    if p["status"] != "open":
        return f"ERROR: pick {pickId} is {p['status']}"
    for line in p["lines"]:
        if onHand(line["sku"]) < line["quantity"]:
            return f"ERROR: not enough {items[line['sku']]['name']}: {onHand(line['sku'])} on hand, {line['quantity']} needed"
    for line in p["lines"]:
        left = line["quantity"]
        for (b, s), n in list(stock.items()):
            if s == line["sku"] and left:
                take = min(n, left)
                move("ship", s, -take, b)
                left -= take
    p["status"] = "shipped"
    return f"Pick {pickId} for {p['customer']} shipped."


@mcp.tool
def assignPick(pickId: str, picker: str) -> str:
    """Set who collects a pick"""
    p = picks.get(pickId)
    if not p:
        return f"ERROR: unknown pick {pickId}"
    if p["status"] != "open":
        return f"ERROR: pick {pickId} is {p['status']}"
    p["picker"] = picker
    return f"Pick {pickId} is now collected by {picker}."


@mcp.tool
def updateItem(sku: str, unitPrice: float | None = None, minStock: int | None = None) -> str:
    """Change price and/or minimum stock."""
    if sku not in items:
        return f"ERROR: unknown sku {sku}"
    if unitPrice is None and minStock is None:
        return "ERROR: nothing to change"
    if (unitPrice is not None and unitPrice < 0) or (minStock is not None and minStock < 0):
        return "ERROR: negative value"
    if unitPrice is not None:
        items[sku]["unitPrice"] = unitPrice
    if minStock is not None:
        items[sku]["minStock"] = minStock
    items[sku]["updatedAt"] = datetime.now().isoformat()
    return out(items[sku])


if __name__ == "__main__":
    mcp.run()
