/* Atomics on long double and its complex give the processor's results: every pair of the values below,
 * and many of random bits. Runs alone, with itself as the target. */
#include <complex.h>
#include <math.h>

#include "meet.h"

typedef long double number;
typedef union {
    number        value;
    unsigned char bytes[16];
    struct {
        uint64_t mantissa;
        uint16_t top;
    } parts;
} word;

enum { MANY = 32 };

static ptl_handle_ni_t ni;
static ptl_handle_ct_t done;
static ptl_handle_md_t in, out;
static ptl_pt_index_t  table;
static ptl_process_t   self;
static ptl_size_t      ended;
static word            there[MANY], sent[MANY], before[MANY], operand[2];

static uint64_t next(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static word of(uint16_t top, uint64_t mantissa)
{
    word it;
    memset(&it, 0x5a, sizeof it);
    it.parts.mantissa = mantissa;
    it.parts.top      = top;
    return it;
}

/* Zeros, ones, the smallest, the largest, infinities, NaNs of both kinds, and what is no number's
 * encoding. */
static const struct {
    uint16_t top;
    uint64_t mantissa;
} special[] = {
    {0, 0}, {0x8000, 0}, {0, 1}, {0x8000, 3}, {0, UINT64_MAX >> 1}, {0, 1ull << 63}, {1, 1ull << 63},
    {1, UINT64_MAX}, {0x3fff, 1ull << 63}, {0xbfff, 1ull << 63}, {0x3fff, (1ull << 63) | 1}, {0x3fbf, 1ull << 63},
    {0x3fbf, (1ull << 63) | 1}, {0xbfbe, UINT64_MAX}, {0x4000, UINT64_MAX}, {0x7ffe, UINT64_MAX},
    {0xfffe, UINT64_MAX}, {0x7fbe, 1ull << 63}, {0x7fff, 1ull << 63}, {0xffff, 1ull << 63}, {0x7fff, 3ull << 62},
    {0xffff, (3ull << 62) | 7}, {0x7fff, (1ull << 63) | 9}, {0xffff, (1ull << 63) | 9}, {0x7fff, 0}, {0x7fff, 5},
    {0x3fff, 1}, {0x1234, UINT64_MAX >> 1},
};
enum { SPECIAL = sizeof special / sizeof *special };

static word any(void)
{
    uint64_t what = next() % 8;
    uint64_t mantissa = next();
    uint16_t top = (uint16_t)next();
    if (what == 0) {
        size_t at = next() % SPECIAL;
        return of(special[at].top, special[at].mantissa);
    }
    /* Mostly near each other: there sums are rounded, and differences cancel. */
    if (what < 6) top = (uint16_t)((top & 0x8000) | (0x3fff + (top & 0x7f) - 64));
    if (what < 3) mantissa &= UINT64_MAX << (next() & 63);
    return of(top, mantissa | 1ull << 63);
}

static int same(word a, word b)
{
    return memcmp(a.bytes, b.bytes, 10) == 0;
}

static int is_encoded(word a)
{
    return (a.parts.top & 0x7fff) == 0 || a.parts.mantissa >> 63;
}

static void show(const char *what, word a, word b, word is, word wanted)
{
    if (same(is, wanted)) return;
    fprintf(stderr, "%s of %04x %016lx and %04x %016lx: %04x %016lx and not %04x %016lx\n", what, a.parts.top,
            a.parts.mantissa, b.parts.top, b.parts.mantissa, is.parts.top, is.parts.mantissa, wanted.parts.top,
            wanted.parts.mantissa);
    exit(1);
}

static void atomic(ptl_op_t op, ptl_datatype_t type, size_t length)
{
    memcpy(before, there, sizeof before);
    OK(PtlAtomic(out, 0, length, PTL_CT_ACK_REQ, self, table, 0, 0, NULL, 0, op, type));
    CHECK(meet_reach(done, ++ended).failure == 0);
}

static void swap(ptl_op_t op, ptl_datatype_t type, size_t length)
{
    OK(PtlSwap(in, 0, out, 0, length, self, table, 0, 0, NULL, 0, operand, op, type));
    CHECK(meet_reach(done, ++ended).failure == 0);
}

/* What C makes of it; it has no part in what is stored for what is no number. */
static void check_numbers(void)
{
    for (ptl_op_t op = PTL_MIN; op <= PTL_PROD; op++) {
        word saved[MANY];
        memcpy(saved, there, sizeof saved);
        atomic(op, PTL_LONG_DOUBLE, sizeof there);
        for (int at = 0; at < MANY; at++) {
            word a = before[at], b = sent[at], wanted;
            volatile number x = a.value, y = b.value;
            memset(&wanted, 0, sizeof wanted);
            if (op == PTL_SUM || op == PTL_PROD) {
                wanted.value = op == PTL_SUM ? x + y : x * y;
                show(op == PTL_SUM ? "the sum" : "the product", a, b, there[at], wanted);
                continue;
            }
            if (!is_encoded(a) || !is_encoded(b) || (isnan(x) && isnan(y))) continue;
            if (isnan(x)) wanted = b;
            else if (isnan(y)) wanted = a;
            else wanted = (op == PTL_MIN ? y < x : y > x) ? b : a;
            show(op == PTL_MIN ? "the lesser" : "the greater", a, b, there[at], wanted);
        }
        memcpy(there, saved, sizeof there);
    }
}

static void check_conditions(void)
{
    for (ptl_op_t op = PTL_CSWAP; op <= PTL_CSWAP_GT; op++) {
        word old = there[0], holds;
        operand[0] = next() & 1 ? old : any();
        volatile number x = operand[0].value, y = old.value;
        int stores = op == PTL_CSWAP      ? x == y
                     : op == PTL_CSWAP_NE ? x != y
                     : op == PTL_CSWAP_LE ? x <= y
                     : op == PTL_CSWAP_LT ? x < y
                     : op == PTL_CSWAP_GE ? x >= y
                                          : x > y;
        holds = stores ? sent[0] : old;
        swap(op, PTL_LONG_DOUBLE, 16);
        show("what was there", old, old, before[0], old);
        show("what a condition stores", operand[0], old, there[0], holds);
        there[0] = any();
    }
}

static void check_complex(void)
{
    for (ptl_op_t op = PTL_SUM; op <= PTL_PROD; op++) {
        word saved[MANY];
        memcpy(saved, there, sizeof saved);
        atomic(op, PTL_LONG_DOUBLE_COMPLEX, sizeof there);
        for (int at = 0; at < MANY; at += 2) {
            volatile number a = before[at].value, b = before[at + 1].value, c = sent[at].value, d = sent[at + 1].value;
            volatile number ac = a * c, bd = b * d, ad = a * d, bc = b * c;
            word re, im;
            memset(&re, 0, sizeof re);
            memset(&im, 0, sizeof im);
            re.value = op == PTL_SUM ? a + c : ac - bd;
            im.value = op == PTL_SUM ? b + d : ad + bc;
            show("a real part", before[at], sent[at], there[at], re);
            show("an imaginary part", before[at], sent[at], there[at + 1], im);
            if (op == PTL_PROD && !isnan(re.value) && !isnan(im.value)) {
                volatile long double complex z = CMPLXL(a, b), w = CMPLXL(c, d);
                volatile long double complex product = z * w;
                CHECK(creall(product) == re.value && cimagl(product) == im.value);
            }
        }
        memcpy(there, saved, sizeof there);
    }
    word pair[2] = {there[0], there[1]};
    int  equal = 0;
    memcpy(operand, pair, sizeof pair);
    {
        volatile number x = pair[0].value, y = pair[1].value;
        equal = x == x && y == y;
    }
    swap(PTL_CSWAP, PTL_LONG_DOUBLE_COMPLEX, 32);
    for (int at = 0; at < 2; at++) show("a part", pair[at], pair[at], there[at], equal ? sent[at] : pair[at]);
}

int main(void)
{
    OK(PtlInit());
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    OK(PtlGetPhysId(ni, &self));
    OK(PtlCTAlloc(ni, &done));
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, PTL_PT_ANY, &table));
    ptl_le_t le = {.start     = there,
                   .length    = sizeof there,
                   .ct_handle = PTL_CT_NONE,
                   .uid       = PTL_UID_ANY,
                   .options   = PTL_LE_OP_PUT | PTL_LE_OP_GET};
    ptl_handle_le_t entry;
    OK(PtlLEAppend(ni, table, &le, PTL_PRIORITY_LIST, NULL, &entry));
    ptl_md_t of_sent = meet_md(sent, sizeof sent, PTL_MD_EVENT_CT_ACK, PTL_EQ_NONE, done);
    OK(PtlMDBind(ni, &of_sent, &out));
    ptl_md_t of_old = meet_md(before, sizeof before, PTL_MD_EVENT_CT_REPLY, PTL_EQ_NONE, done);
    OK(PtlMDBind(ni, &of_old, &in));

    for (size_t a = 0; a < SPECIAL; a++) {
        for (int at = 0; at < MANY; at++) {
            size_t b  = (size_t)at % SPECIAL;
            there[at] = of(special[a].top, special[a].mantissa);
            sent[at]  = of(special[b].top, special[b].mantissa);
        }
        check_numbers();
        check_complex();
    }
    for (int round = 0; round < 400; round++) {
        for (int at = 0; at < MANY; at++) {
            there[at] = any();
            sent[at]  = any();
        }
        check_numbers();
        check_conditions();
        check_complex();
    }
    IS(PtlAtomic(out, 0, 32, PTL_CT_ACK_REQ, self, table, 0, 0, NULL, 0, PTL_MIN, PTL_LONG_DOUBLE_COMPLEX),
       PTL_ARG_INVALID);
    IS(PtlAtomic(out, 0, 16, PTL_CT_ACK_REQ, self, table, 0, 0, NULL, 0, PTL_BOR, PTL_LONG_DOUBLE), PTL_ARG_INVALID);
    OK(PtlLEUnlink(entry));
    OK(PtlNIFini(ni));
    PtlFini();
    return 0;
}
