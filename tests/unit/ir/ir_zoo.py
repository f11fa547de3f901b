"""Kernels in text that together contain every operation, for tests of totality."""

from __future__ import annotations

FLOAT_UNARY = "opaque sqrt rsqrt exp log sin cos tan asin acos tanh floor ceil trunc round neg abs"
FLOAT_BINARY = "add sub mul div min max atan2 pow"
INT_UNARY = "neg abs not popcnt clz ctz"
INT_BINARY = "add sub mul idiv irem min max and or xor shl shr"
KERNEL_ONLY = "floordiv floormod recall"
COMPARE = "eq ne lt le gt ge"


def arithmetic(kernel_level: bool, indent: str = "  ") -> str:
    """Every scalar operation on %i, %j (i32), %f, %g (f32) and %c (u1)."""
    lines = [f"%f_{n} = {n}(%f) : f32" for n in FLOAT_UNARY.split()]
    lines += [f"%f_{n} = {n}(%f, %g) : f32" for n in FLOAT_BINARY.split()]
    lines += [f"%i_{n} = {n}(%i) : i32" for n in INT_UNARY.split()]
    lines += [f"%i_{n} = {n}(%i, %j) : i32" for n in (INT_BINARY + (" " + KERNEL_ONLY if kernel_level else "")).split()]
    lines += ["%stopped = stop_grad(%f) : f32", "%attached = with_partial(%f, %g, %f) : f32"] if kernel_level else []
    lines += [f"%c_{n} = {n}(%f, %g) : u1" for n in COMPARE.split()]
    lines += ["%c_isnan = isnan(%f) : u1", "%c_isinf = isinf(%f) : u1", "%fma = fma(%f, %g, %f) : f32"]
    lines += ['%nsw = add["nsw"](%i, %j) : i32', '%re = mul["reassoc"](%f, %g) : f32', '%ex = sub["exact"](%f, %g) : f32']
    lines += ["%s = select(%c, %i, %j) : i32", "%cast = cast(%i) : f64", "%bits = bitcast(%f) : i32"]
    lines += ["%nan = const[nan]() : f32", "%inf = const[inf]() : f64", "%minf = const[-inf]() : f16", "%tenth = const[0.1]() : f32"]
    lines += ["%low = const[-9223372036854775808]() : i64", "%high = const[18446744073709551615]() : u64", "%t = const[True]() : u1"]
    lines += ["%v = vec(%f, %g, %f) : vec<3,f32>", "%e = extract(%v, %i) : f32", "%w = insert(%v, %i, %g) : vec<3,f32>"]
    lines += ["%vs = select(%c, %v, %w) : vec<3,f32>"]
    return "".join([f"{indent}{line}\n" for line in lines])


def tiled(code: str, attribute: str, operands: int, results: int, name: str) -> str:
    """An operation on tiles of 16 x 16 numbers of f64."""
    result = f"%{name} = " if results else ""
    return f"    {result}{code}{attribute}({', '.join(['%wide'] * operands)}){f' : vec<{results},f64>' if results else ''}\n"


TILE_OPERATIONS = (
    tiled("tile_entries", '["total"]', 16, 8, "entries")
    + tiled("tile_product", "", 24, 8, "product")
    + tiled("tile_rows", "", 8, 16, "tile_rows")
)
MATRIX_OPERATIONS = (
    tiled("matrix_load", '[(("m8n8k4_f64", 16, "transposed b"), rows)]', 0, 8, "held")
    + tiled("matrix_store", '[(("m8n8k4_f64", 16, "total"), rows)]', 8, 0, "")
    + tiled("matrix_product", '[("m8n8k4_f64", 16)]', 24, 8, "more")
)

KERNEL = (
    """kernel "zoo \\"quoted\\""
arg ScalarArg("n", i32)
arg ArrayArg("x", f32, 2, element_shape=(3,), needs_grad=True)
arg ScalarArg("flag", u1)
ref x = ArrayRef("x", 1, f32, 2, element_shape=(3,))
ref x_grad = ArrayRef("x", 1, f32, 2, element_shape=(3,), role="grad")
ref a_b = FieldRef("a.b", 0, 7, i32, (4, 8), (), Layout((Term(0, 1, 0, 32), Term(1, 2, 4, 4)), components=(16,), origin=(-1, 2)))
ref class_2 = FieldRef("class", 1, 8, u1, (4,), (), Layout((Term(0, 1, 0, 1),)))
ref i32_2 = TempRef("i32", i32)
ref t = TempRef("t", u64, shape=(4,))
ref notes = AdstackRef("notes", f32, 2, 0)
return i32_2
{
  %i = arg[0]() : i32
  %c = arg[2]() : u1
  %j = shape[(1, 0)]() : i32
  %place = address[(1, "grad")]() : u64
  %origin = address[("tree", 0)]() : u64
  %seed = seed()  : u32
  %base = adstack_word[("adstack_base", 0)]() : i32
  %zero = const[0]() : i32
  %one = const[1]() : i32
  %f = load[x](%zero, %zero, %one) : f32
  %g = load[x_grad](%zero, %zero, %one) : f32
"""
    + arithmetic(True)
    + """  %u = const[3]() : u64
  %old = atomic[("add", t)](%zero, %u) : u64
  %was = cas[t](%one, %u, %old) : u64
  %mine = claim[i32_2]() : i32
  %flag = load[class_2](%one) : u1
  store[class_2](%one, %flag)
  store[notes](%zero, %one, %f)
  %noted = load[notes](%zero, %one) : f32
  check[FaultSite("assert", "n is {0}", (i32,))](%c, %i)
  print[PrintSite(("n = ", (0, ""), "\\n"), (i32,))](%i)
  for[LoopAttr(parallel=True, name="loop", group_size=64)](%zero, %i) : () { (%k: i32)
    label[Label()](%k)
    label[Label(of=a_b, count=1)](%k, %k)
    %old2 = atomic[("min", a_b)](%k, %k, %j) : i32
    yield()
  }
  for[LoopAttr(parallel=True, name="grouped", group_size=32, grouped=True)](%zero, %i) : () { (%k3: i32)
    %wide = cast(%k3) : f64
"""
    + TILE_OPERATIONS
    + """    yield()
  }
  %sum = for[LoopAttr()](%zero, %i, %zero, %v) : (i32, vec<3,f32>) { (%k2: i32, %acc: i32, %vec: vec<3,f32>)
    %next = add(%acc, %k2) : i32
    yield(%next, %vec)
  }
  %total = result[0](%sum) : i32
  %if = if(%c) : (i32) {
    yield(%total)
  } {
    yield(%zero)
  }
  %chosen = result[0](%if) : i32
  %loop = while(%chosen) : (i32) { (%p: i32)
    %go = gt(%p, %zero) : u1
    yield(%go)
  } { (%q: i32)
    %less = sub(%q, %one) : i32
    yield(%less)
  }
  %end = result[0](%loop) : i32
  store[i32_2](%end)
  yield()
}
"""
)

DEVICE = (
    """kernel "device_zoo"
arg ScalarArg("n", i32)
arg ArrayArg("x", f32, 1)
ref x = BufferRef("x", Slot("array", index=1), f32)
ref temps = BufferRef("temps", Slot("temps", offset=8), u32)
ref shared = SharedRef("shared", f32, 64)
ref rows = SharedRef("rows", f64, 320)
function "twice" { (%p: f32)
  %d = add(%p, %p) : f32
  yield(%d)
}
function "both" { (%p: f32, %q: f32)
  %t = call["twice"](%p) : f32
  %d = add(%t, %q) : f32
  yield(%d)
}
function "parts" { (%p: f32)
  %t = call["twice"](%p) : f32
  %d = gt(%t, %p) : u1
  yield(%t, %d)
}
function "stored" { (%i: i32)
  %v = load[x](%i) : f32
  %n = slot[Slot("scalar", dtype=i32, offset=16)]() : i32
  store[x](%n, %v)
  yield()
}
{
  task[TaskAttr("serial", "first")]() {
    %i = slot[Slot("scalar", dtype=i32, offset=16)]() : i32
    %j = slot[Slot("shape", index=1, dtype=i32, offset=20)]() : i32
    %zero = const[0]() : i32
    %f = load[x](%zero) : f32
    %g = load[x](%i) : f32
    %h = call["both"](%f, %g) : f32
    %two = call["parts"](%h) : (f32, u1)
    %larger = result[1](%two) : u1
    %c = gt(%i, %j) : u1
"""
    + arithmetic(False, "    ")
    + """    %u = const[3]() : u32
    %was = cas[temps](%zero, %u, %u) : u32
    barrier()
    %now = clock() : i64
    %room = stack_room() : u1
    call_memory[MemoryCall("stored", (("read", x), ("write", x)))](%i) : ()
    yield()
  }
  task[TaskAttr("invocations", "third", group_size=64)]() {
    %first = builtin[BuiltIn.LOCAL]() : i32
    %groups = builtin[BuiltIn.WORKGROUPS]() : i32
    %lane = builtin[BuiltIn.LANE]() : i32
    %mine = load[x](%first) : f32
    %ours = subgroup_reduce["add"](%mine) : f32
    %before = subgroup_scan["max"](%mine) : f32
    %other = subgroup_shuffle[1](%ours) : f32
    %read = subgroup_read(%other, %lane) : f32
    %most = gt(%read, %mine) : u1
    %votes = subgroup_ballot(%most) : u32
    subgroup_barrier()
    %wide = cast(%mine) : f64
"""
    + MATRIX_OPERATIONS
    + """    store[shared](%lane, %read)
    workgroup_barrier()
    %theirs = load[shared](%first) : f32
    store[x](%groups, %theirs)
    yield()
  }
  task[TaskAttr("range_for", "second", group_size=64, reductions=(Reduction("add", f32), Reduction("max", i32)))]() {
    %b = const[0]() : i32
    %e = slot[Slot("scalar", dtype=i32, offset=16)]() : i32
    yield(%b, %e)
  } { (%k: i32, %sum: f32, %most: i32)
    %slot = thread_slot() : i32
    %value = load[x](%k) : f32
    %more = add["reassoc"](%sum, %value) : f32
    %most2 = max["reassoc"](%most, %k) : i32
    yield(%more, %most2)
  } { (%all: f32, %top: i32)
    %at = const[0]() : i32
    %old = atomic[("add", x)](%at, %all) : f32
    yield()
  }
  yield()
}
"""
)

LOOPS = """kernel "lanes"
ref x = BufferRef("x", Slot("array"), f32)
ref own = SharedRef("own", i32, 32)
function "half" { (%p: f32)
  %h = const[0.5]() : f32
  %q = mul(%p, %h) : f32
  yield(%q)
}
{
  task[TaskAttr("serial", "all")]() {
    %slots = lane_slots() : i32
    %four = const[4]() : i32
    %numbers = lane_const[(0, 1, 2, 3, 4, 5, 6, 7)]() : lanes<8,i32>
    %fours = splat(%four) : lanes<8,i32>
    %low = lt(%numbers, %fours) : lanes<8,u1>
    %wide = widen_mask(%low) : lanes<8,i32>
    %narrow = narrow_mask(%wide) : lanes<8,u1>
    %any = any_lane(%wide) : u1
    %bits = ballot_lanes(%narrow) : i64
    %back = lanes_of_bits(%bits) : lanes<8,u1>
    %near = load_lanes[(1, x)](%four) : lanes<8,f32>
    %other = load_lanes[(1, x)](%four, %low, %near) : lanes<8,f32>
    %apart = load_lanes[(3, x)](%four, %bits, %low, %back) : lanes<8,f32>
    %gathered = load[x](%numbers) : lanes<8,f32>
    %sum = fma(%near, %apart, %gathered) : lanes<8,f32>
    %halves = call["half"](%sum) : lanes<8,f32>
    %whole = cast(%halves) : lanes<8,i32>
    %chosen = select(%low, %whole, %numbers) : lanes<8,i32>
    %total = reduce_lanes["add"](%chosen) : i32
    %one = extract(%chosen, %four) : i32
    store_lanes[(1, x)](%four, %halves, %low)
    store_lanes[(2, x)](%bits, %halves)
    store_compressed[own](%total, %chosen, %low)
    %each = each_lane(%low, %numbers, %halves) : (lanes<8,f32>) { (%i: i32, %v: f32)
      %old = atomic[("add", x)](%i, %v) : f32
      yield(%old)
    }
    %loop = while(%wide) : (lanes<8,i32>) { (%live: lanes<8,i32>)
      %some = any_lane(%live) : u1
      yield(%some, %live)
    } { (%before: lanes<8,i32>, %going: lanes<8,i32>)
      %less = and(%before, %going) : lanes<8,i32>
      yield(%less)
    }
    yield()
  }
  yield()
}
"""
