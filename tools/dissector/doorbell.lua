-- doorbell.lua: shows doorbell's frames in Wireshark and tshark (Lua 5.2 to 5.4; Wireshark 3.6 and later).
--
--   tshark -X lua_script:doorbell.lua -r capture.pcapng -Y doorbell
--
-- Frames travel in UDP, with a basic header of 24 bytes, a header of their kind, and bytes; little endian.
-- The format is defined by btl/src/wire.rs, and that of the heads of messages by pml/src/wire.rs. Frames are
-- recognised on the ports of simulated captures, and on any other port by their content (version, kind, flags
-- and lengths must all fit); "Decode As" covers the rest. Every byte is treated as hostile.

local doorbell = Proto("doorbell", "doorbell")

local VERSION = 1
local BASIC = 24
local MAC = 8
-- drivers/sim/src/dump.rs
local PORTS = { 0xdb10, 0xdb11 }

local KINDS = {
    [1] = "ACK", [2] = "FRAG", [3] = "CHUNK", [4] = "PUT", [5] = "GET", [6] = "DATA",
    [7] = "ATOMIC", [8] = "END", [9] = "BYE", [10] = "PING", [11] = "PONG",
    [12] = "CALL", [13] = "HELLO",
}
-- Bytes of each kind's own header.
local HEADERS = {
    [1] = 0, [2] = 0, [3] = 12, [4] = 40, [5] = 32, [6] = 16, [7] = 48, [8] = 24, [9] = 0, [10] = 8, [11] = 8,
    [12] = 12, [13] = 0,
}
local ACK, FRAG, CHUNK, PUT, GET, DATA, ATOMIC, END, PING, PONG, CALL = 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12
-- Of no connection: the number of a door is in its place.
local HELLO = 13
local ATOMICS = { [1] = "add", [2] = "and", [3] = "or", [4] = "xor", [5] = "swap", [6] = "compare and swap" }
local STATUSES = { [0] = "done", [1] = "denied", [2] = "withdrawn" }
local CHECKS = { [0] = "wrong", [1] = "right", [2] = "not checked", [3] = "none" }
local HEADS = {
    [1] = "MATCH", [2] = "RNDV", [3] = "RGET", [4] = "ACK", [5] = "NACK", [6] = "FRAG", [8] = "PUT", [9] = "FIN",
    [10] = "RESTART NOTIFY", [11] = "RESTART ACK", [12] = "RESTART NACK", [13] = "RESTART ERROR", [14] = "CREDIT",
    [15] = "PROBE", [16] = "ECHO", [17] = "BROKEN", [18] = "CHECKED",
}

local f = {
    connection = ProtoField.uint64("doorbell.connection", "Connection", base.HEX),
    sequence = ProtoField.uint32("doorbell.sequence", "Sequence number"),
    ack = ProtoField.uint32("doorbell.ack", "Acknowledged up to"),
    length = ProtoField.uint16("doorbell.length", "Length after the basic header"),
    kind = ProtoField.uint8("doorbell.kind", "Kind", base.DEC, KINDS),
    version = ProtoField.uint8("doorbell.version", "Version", base.DEC, nil, 0xf0),
    flag_ack = ProtoField.bool("doorbell.flag.ack", "Acknowledgement holds", 8, nil, 0x01),
    flag_urgent = ProtoField.bool("doorbell.flag.urgent", "Sender waits for an acknowledgement", 8, nil, 0x02),
    flag_crc = ProtoField.bool("doorbell.flag.crc", "CRC holds", 8, nil, 0x04),
    flag_mac = ProtoField.bool("doorbell.flag.mac", "MAC follows", 8, nil, 0x08),
    check = ProtoField.uint32("doorbell.check", "CRC-32C", base.HEX),
    check_status = ProtoField.uint8("doorbell.check.status", "CRC status", base.DEC, CHECKS),
    mac = ProtoField.bytes("doorbell.mac", "MAC"),
    padding = ProtoField.bytes("doorbell.padding", "Bytes behind the frame"),
    payload = ProtoField.bytes("doorbell.payload", "Payload"),
    payload_length = ProtoField.uint32("doorbell.payload.length", "Payload length"),
    bitmap = ProtoField.bytes("doorbell.bitmap", "Bitmap of what came behind the gap"),
    arrived = ProtoField.string("doorbell.bitmap.arrived", "Arrived behind the gap"),
    missing = ProtoField.uint32("doorbell.bitmap.missing", "Segments missing before the last of these"),
    again = ProtoField.framenum("doorbell.again", "The same segment as in frame"),
    chunk_first = ProtoField.uint32("doorbell.chunk.first", "First segment of the message"),
    chunk_total = ProtoField.uint32("doorbell.chunk.total", "Length of the message"),
    chunk_size = ProtoField.uint16("doorbell.chunk.size", "Bytes per chunk"),
    chunk_index = ProtoField.uint32("doorbell.chunk.index", "Number of the chunk"),
    chunk_offset = ProtoField.uint64("doorbell.chunk.offset", "Place in the message"),
    op = ProtoField.uint64("doorbell.op", "Operation"),
    key = ProtoField.uint64("doorbell.key", "Key", base.HEX),
    address = ProtoField.uint64("doorbell.address", "Address at the target", base.HEX),
    total = ProtoField.uint64("doorbell.total", "Bytes of the operation"),
    offset = ProtoField.uint64("doorbell.offset", "Place in the operation"),
    first = ProtoField.uint64("doorbell.atomic.first", "Operand, or what must be there"),
    second = ProtoField.uint64("doorbell.atomic.second", "What is stored then"),
    what = ProtoField.uint8("doorbell.atomic.what", "Atomic", base.DEC, ATOMICS),
    value = ProtoField.uint64("doorbell.end.value", "Old value"),
    status = ProtoField.uint8("doorbell.end.status", "Status", base.DEC, STATUSES),
    token = ProtoField.uint32("doorbell.ping.token", "Token", base.HEX),
    size = ProtoField.uint32("doorbell.ping.size", "Size of the whole frame"),
    life = ProtoField.uint32("doorbell.call.life", "Life of the sender's end"),
    yours = ProtoField.uint32("doorbell.call.yours", "Life of the receiver's end, as heard"),
    ask = ProtoField.uint8("doorbell.call.ask", "Answer wanted"),
    head = ProtoField.uint8("doorbell.head.kind", "Kind of message", base.DEC, HEADS),
    head_flags = ProtoField.uint8("doorbell.head.flags", "Flags", base.HEX),
    context = ProtoField.uint16("doorbell.head.context", "Context"),
    order = ProtoField.uint32("doorbell.head.sequence", "Number of the message"),
    tag = ProtoField.uint64("doorbell.head.tag", "Tag", base.HEX),
}
doorbell.fields = f

local e = {
    short = ProtoExpert.new("doorbell.short", "The frame is shorter than its head requires", expert.group.MALFORMED,
        expert.severity.ERROR),
    version = ProtoExpert.new("doorbell.bad_version", "Another version of the format", expert.group.UNDECODED,
        expert.severity.WARN),
    kind = ProtoExpert.new("doorbell.bad_kind", "No such kind", expert.group.MALFORMED, expert.severity.ERROR),
    check = ProtoExpert.new("doorbell.bad_check", "The CRC is wrong", expert.group.CHECKSUM,
        expert.severity.ERROR),
    again = ProtoExpert.new("doorbell.sent_again", "This segment was seen before", expert.group.SEQUENCE,
        expert.severity.NOTE),
}
doorbell.experts = { e.short, e.version, e.kind, e.check, e.again }

doorbell.prefs.check = Pref.bool("Check the CRC of every frame", true, "Costs some microseconds per frame.")
doorbell.prefs.heads = Pref.bool("Show the heads of messages", true, "The first bytes of a FRAG or a first CHUNK.")

local interface_id = Field.new("frame.interface_id")

-- CRC-32C (Castagnoli), reflected; the CRC's own field counts as zero.
local bxor, band, rshift = bit.bxor, bit.band, bit.rshift
local crc_table = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        if band(crc, 1) == 1 then
            crc = bxor(rshift(crc, 1), 0x82f63b78)
        else
            crc = rshift(crc, 1)
        end
    end
    crc_table[byte] = crc
end

local function crc32c(bytes)
    local crc = -1
    for at = 1, #bytes do
        local byte = bytes:byte(at)
        if at > 20 and at <= 24 then
            byte = 0
        end
        crc = bxor(rshift(crc, 8), crc_table[band(bxor(crc, byte), 0xff)])
    end
    return bxor(crc, -1) % 0x100000000
end

-- Where each segment was first seen, by connection and interface: a capture of both ends has all of them
-- twice.
local first_seen = {}
-- What was found in the first pass, by frame number.
local seen_in = {}

function doorbell.init()
    first_seen = {}
    seen_in = {}
end

local function note_segment(buffer, pinfo)
    if not pinfo.visited then
        local interface = interface_id()
        local name = tostring(interface and interface.value) .. " " .. buffer(0, 12):bytes():tohex()
        local first = first_seen[name]
        if first == nil then
            first_seen[name] = pinfo.number
        elseif first ~= pinfo.number then
            seen_in[pinfo.number] = first
        end
    end
    return seen_in[pinfo.number]
end

-- "5-7 9": which numbers after the gap a bitmap says have arrived; and how many before the last of them have
-- not.
local function ranges(bitmap, ack)
    local text, missing, holes, from, last = {}, 0, 0, nil, nil
    local function close()
        if from then
            local a, b = (ack + 1 + from) % 0x100000000, (ack + 1 + last) % 0x100000000
            text[#text + 1] = a == b and string.format("%.0f", a) or string.format("%.0f-%.0f", a, b)
            from = nil
        end
    end
    for at = 0, bitmap:len() - 1 do
        local byte = bitmap(at, 1):uint()
        for i = 0, 7 do
            if band(rshift(byte, i), 1) == 1 then
                missing = missing + holes
                holes = 0
                last = at * 8 + i
                from = from or last
            else
                close()
                holes = holes + 1
            end
        end
    end
    close()
    return table.concat(text, " "), missing
end

-- The head of a message, for those who want to see which it is.
local function show_head(bytes, tree, info)
    if not doorbell.prefs.heads or bytes:len() < 16 then
        return
    end
    local kind = bytes(0, 1):uint()
    if HEADS[kind] == nil then
        return
    end
    local head = tree:add(doorbell, bytes(0, 16), "Head of a message: " .. HEADS[kind])
    head:add_le(f.head, bytes(0, 1))
    head:add_le(f.head_flags, bytes(1, 1))
    info[#info + 1] = "[" .. HEADS[kind] .. "]"
    -- FRAG and CREDIT have no identity of a message.
    if kind ~= 6 and kind ~= 14 then
        head:add_le(f.context, bytes(2, 2))
        head:add_le(f.order, bytes(4, 4))
        head:add_le(f.tag, bytes(8, 8))
        info[#info] = string.format("[%s #%.0f tag 0x%s]", HEADS[kind], bytes(4, 4):le_uint(), bytes(8, 8):le_uint64():tohex())
    end
end

-- Each shows the kind's own header and returns where the payload begins.
local show = {}

show[ACK] = function(body, tree, info, frame)
    if body:len() == 0 then
        return
    end
    tree:add(f.bitmap, body())
    local text, missing = ranges(body, frame(12, 4):le_uint())
    tree:add(f.arrived, body(), text):set_generated()
    tree:add(f.missing, body(), missing):set_generated()
    info[#info + 1] = "and " .. text
end

show[FRAG] = function(body, tree, info)
    if body:len() > 0 then
        show_head(body, tree, info)
    end
end

show[CHUNK] = function(body, tree, info, frame)
    tree:add_le(f.chunk_first, body(0, 4))
    tree:add_le(f.chunk_total, body(4, 4))
    tree:add_le(f.chunk_size, body(8, 2))
    local index = (frame(8, 4):le_uint() - body(0, 4):le_uint()) % 0x100000000
    local offset = UInt64(index) * UInt64(body(8, 2):le_uint())
    tree:add(f.chunk_index, body(0, 12), index):set_generated()
    tree:add(f.chunk_offset, body(0, 12), offset):set_generated()
    info[#info + 1] = string.format("at %s of %.0f", tostring(offset), body(4, 4):le_uint())
    if index == 0 and body:len() > 12 then
        show_head(body(12):tvb(), tree, info)
    end
end

local function show_target(body, tree)
    tree:add_le(f.op, body(0, 8))
    tree:add_le(f.key, body(8, 8))
    tree:add_le(f.address, body(16, 8))
end

show[PUT] = function(body, tree, info)
    show_target(body, tree)
    tree:add_le(f.total, body(24, 8))
    tree:add_le(f.offset, body(32, 8))
    info[#info + 1] = string.format("at %s of %s", tostring(body(32, 8):le_uint64()), tostring(body(24, 8):le_uint64()))
end

show[GET] = function(body, tree, info)
    show_target(body, tree)
    tree:add_le(f.total, body(24, 8))
    info[#info + 1] = tostring(body(24, 8):le_uint64()) .. " bytes"
end

show[DATA] = function(body, tree, info)
    tree:add_le(f.op, body(0, 8))
    tree:add_le(f.offset, body(8, 8))
    info[#info + 1] = "at " .. tostring(body(8, 8):le_uint64())
end

show[ATOMIC] = function(body, tree, info)
    show_target(body, tree)
    tree:add_le(f.first, body(24, 8))
    tree:add_le(f.second, body(32, 8))
    tree:add_le(f.what, body(40, 1))
    info[#info + 1] = ATOMICS[body(40, 1):uint()] or "an atomic that does not exist"
end

show[END] = function(body, tree, info)
    tree:add_le(f.op, body(0, 8))
    tree:add_le(f.value, body(8, 8))
    tree:add_le(f.status, body(16, 1))
    info[#info + 1] = STATUSES[body(16, 1):uint()] or "a status that does not exist"
end

show[PING] = function(body, tree, info)
    tree:add_le(f.token, body(0, 4))
    tree:add_le(f.size, body(4, 4))
    info[#info + 1] = string.format("of %.0f bytes", body(4, 4):le_uint())
end

show[PONG] = show[PING]

show[CALL] = function(body, tree, info)
    tree:add_le(f.life, body(0, 4))
    tree:add_le(f.yours, body(4, 4))
    tree:add_le(f.ask, body(8, 1))
    info[#info + 1] = string.format("life %.0f, yours %.0f%s", body(0, 4):le_uint(), body(4, 4):le_uint(),
        body(8, 1):uint() == 1 and ", answer wanted" or "")
end

local function show_flags(frame, tree)
    for _, field in ipairs({ f.version, f.flag_ack, f.flag_urgent, f.flag_crc, f.flag_mac }) do
        tree:add(field, frame(19, 1))
    end
end

local function show_check(frame, whole, tree)
    local flags = frame(19, 1):uint()
    local item = tree:add_le(f.check, frame(20, 4))
    local status = 3
    if band(flags, 4) ~= 0 then
        status = 2
        if doorbell.prefs.check and frame:len() >= whole then
            status = crc32c(frame(0, whole):raw()) == frame(20, 4):le_uint() and 1 or 0
        end
    end
    tree:add(f.check_status, frame(20, 4), status):set_generated()
    if status == 0 then
        item:add_proto_expert_info(e.check)
    end
    return status
end

local function dissect(frame, pinfo, root)
    pinfo.cols.protocol = "doorbell"
    local tree = root:add(doorbell, frame())
    if frame:len() < BASIC then
        tree:add_proto_expert_info(e.short)
        pinfo.cols.info = "too short"
        return
    end
    local kind, flags, length = frame(18, 1):uint(), frame(19, 1):uint(), frame(16, 2):le_uint()
    tree:add_le(f.connection, frame(0, 8))
    tree:add_le(f.sequence, frame(8, 4))
    tree:add_le(f.ack, frame(12, 4))
    tree:add_le(f.length, frame(16, 2))
    tree:add_le(f.kind, frame(18, 1))
    show_flags(frame, tree)
    local whole = BASIC + length
    local status = show_check(frame, whole, tree)
    local has_mac = band(flags, 8) ~= 0
    local segment = KINDS[kind] and kind ~= ACK and kind ~= PING and kind ~= PONG and kind ~= CALL and kind ~= HELLO
    local info = { KINDS[kind] or ("kind " .. kind) }
    if segment then
        info[#info + 1] = string.format("seq %.0f", frame(8, 4):le_uint())
    end
    if band(flags, 1) ~= 0 then
        info[#info + 1] = string.format("ack %.0f", frame(12, 4):le_uint())
    end
    if status == 0 then
        info[#info + 1] = "[wrong CRC]"
    end

    if math.floor(flags / 16) ~= VERSION then
        tree:add_proto_expert_info(e.version)
    elseif KINDS[kind] == nil then
        tree:add_proto_expert_info(e.kind)
    elseif frame:len() < whole + (has_mac and MAC or 0) or length < HEADERS[kind] then
        tree:add_proto_expert_info(e.short)
        info[#info + 1] = "[cut off]"
    else
        local at = BASIC + HEADERS[kind]
        if show[kind] then
            -- A range of no bytes cannot be made a buffer.
            local body = length > 0 and frame(BASIC, length):tvb() or frame(0, 0)
            show[kind](body, tree, info, frame)
        end
        if kind ~= ACK then
            tree:add(f.payload_length, frame(BASIC, length), whole - at):set_generated()
            info[#info + 1] = string.format("len %.0f", whole - at)
            if whole > at then
                tree:add(f.payload, frame(at, whole - at))
            end
        end
        local rest = whole
        if has_mac then
            tree:add(f.mac, frame(whole, MAC))
            rest = whole + MAC
        end
        if frame:len() > rest then
            tree:add(f.padding, frame(rest))
        end
        local first = segment and status ~= 0 and note_segment(frame, pinfo)
        if first then
            tree:add(f.again, first):set_generated()
            tree:add_proto_expert_info(e.again)
            info[#info + 1] = "[again]"
        end
    end
    pinfo.cols.info = table.concat(info, " ")
end

function doorbell.dissector(frame, pinfo, root)
    dissect(frame, pinfo, root)
    return frame:len()
end

-- Whether these bytes look like one of our frames. UDP says how long a payload is, so nothing may be left
-- over.
local function looks_like(frame)
    if frame:len() < BASIC then
        return false
    end
    local kind, flags, length = frame(18, 1):uint(), frame(19, 1):uint(), frame(16, 2):le_uint()
    local mac = band(flags, 8) ~= 0 and MAC or 0
    return math.floor(flags / 16) == VERSION
        and HEADERS[kind] ~= nil
        and length >= HEADERS[kind]
        and frame:len() == BASIC + length + mac
        and not (mac > 0 and band(flags, 4) ~= 0)
end

doorbell:register_heuristic("udp", function(frame, pinfo, root)
    if not looks_like(frame) then
        return false
    end
    pinfo.conversation = doorbell
    dissect(frame, pinfo, root)
    return true
end)

local udp = DissectorTable.get("udp.port")
for _, port in ipairs(PORTS) do
    udp:add(port, doorbell)
end
udp:add_for_decode_as(doorbell)
