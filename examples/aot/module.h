/* Reads a module of compiled kernels (docs/aot.md) and launches its kernels on a device, which the file that includes this one describes
   by the functions below. Everything ends the program with a message if it fails. Include it after <stdint.h>, in one file. */

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT 3 /* of the manifest */

typedef struct Buffer {
    uint64_t address; /* as kernels see it */
    size_t size;
    void *handle; /* the device's */
} Buffer;

typedef struct Json Json;

/* What the device does. Work is done in the order of the calls. */
static void device_open(const Json *capabilities);
static Buffer *device_allocate(size_t size); /* of zeros */
static void device_upload(Buffer *to, const void *data, size_t size);
static void device_download(Buffer *from, void *data, size_t size); /* after all work so far */
static void *device_load(const Json *task, const char *code, size_t size);
static void device_launch(void *pipeline, const Json *task, const void *block, size_t size, uint32_t groups);
static uint32_t device_max_groups(void);

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "error: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

static void *take(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) die("no memory for %zu bytes", size);
    return memory;
}

/* --- JSON ------------------------------------------------------------------------------------------------------------------------- */

struct Json {
    enum { J_NULL, J_BOOL, J_INT, J_TEXT, J_LIST, J_OBJECT } kind;
    long long number; /* of J_BOOL and J_INT: manifests have no other numbers */
    char *text;
    char **keys;
    Json **items;
    int count;
};

static const char *json_at; /* where the parser is */

static void json_space(void) {
    while (isspace((unsigned char)*json_at)) json_at++;
}

static char *json_text(void) {
    char *out = take(strlen(json_at) < 4096 ? strlen(json_at) + 1 : 4096), *end = out;
    for (json_at++; *json_at != '"'; json_at++) {
        if (!*json_at || end - out > 4090) die("the manifest has a text without an end, or one that is too long");
        if (*json_at != '\\') {
            *end++ = *json_at;
            continue;
        }
        json_at++;
        if (*json_at == 'u') { /* what is not ASCII appears in names of users only */
            *end++ = '?';
            json_at += 4;
        } else {
            *end++ = *json_at == 'n' ? '\n' : *json_at == 't' ? '\t' : *json_at;
        }
    }
    json_at++;
    return realloc(out, (size_t)(end - out) + 1);
}

static Json *json_value(void) {
    Json *value = take(sizeof(Json));
    json_space();
    if (*json_at == '"') {
        value->kind = J_TEXT;
        value->text = json_text();
    } else if (*json_at == '[' || *json_at == '{') {
        char close = *json_at == '[' ? ']' : '}';
        value->kind = *json_at == '[' ? J_LIST : J_OBJECT;
        for (json_at++, json_space(); *json_at != close; json_space()) {
            size_t size = (size_t)(value->count + 1) * sizeof(void *);
            value->items = realloc(value->items, size);
            value->keys = realloc(value->keys, size);
            if (!value->items || !value->keys) die("no memory for the manifest");
            value->keys[value->count] = NULL;
            if (close == '}') {
                if (*json_at != '"') die("the manifest is damaged");
                value->keys[value->count] = json_text();
                json_space();
                if (*json_at++ != ':') die("the manifest is damaged");
            }
            value->items[value->count++] = json_value();
            json_space();
            if (*json_at == ',') {
                json_at++;
                json_space();
            } else if (*json_at != close) {
                die("the manifest is damaged");
            }
        }
        json_at++;
    } else if (!strncmp(json_at, "null", 4)) {
        json_at += 4;
    } else if (!strncmp(json_at, "true", 4) || !strncmp(json_at, "false", 5)) {
        value->kind = J_BOOL;
        value->number = *json_at == 't';
        json_at += value->number ? 4 : 5;
    } else {
        char *end;
        value->kind = J_INT;
        value->number = strtoll(json_at, &end, 10);
        if (end == json_at) die("the manifest is damaged");
        json_at = end;
    }
    return value;
}

static const Json *get(const Json *object, const char *key) {
    for (int i = 0; i < object->count; i++)
        if (object->keys[i] && !strcmp(object->keys[i], key)) return object->items[i];
    die("the manifest lacks `%s`", key);
    return NULL;
}

static long long number(const Json *object, const char *key) { return get(object, key)->number; }

static const char *text(const Json *object, const char *key) {
    const Json *value = get(object, key);
    return value->kind == J_TEXT ? value->text : "";
}

/* The name of a type: {"dtype": "f32"}; "" of null. */
static const char *type_name(const Json *type) { return type->kind == J_OBJECT ? text(type, "dtype") : ""; }

static const Json *find(const Json *list, const char *key, const char *name) {
    for (int i = 0; i < list->count; i++)
        if (!strcmp(text(list->items[i], key), name)) return list->items[i];
    return NULL;
}

/* --- the archive: zip without compression ------------------------------------------------------------------------------------------ */

static unsigned char *archive;
static size_t archive_size;

static uint32_t little(size_t at, int bytes) {
    uint32_t value = 0;
    if (at + (size_t)bytes > archive_size) die("the module is damaged");
    for (int i = bytes; i-- > 0;) value = value << 8 | archive[at + (size_t)i];
    return value;
}

static char *read_whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die("cannot read %s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = take(*size + 1);
    if (fread(data, 1, *size, file) != *size) die("cannot read %s", path);
    fclose(file);
    return data;
}

static const char *archive_file(const char *name, size_t *size) {
    size_t end = archive_size;
    while (end >= 22 && little(end - 22, 4) != 0x06054b50) end--;
    if (end < 22) die("the module is no zip archive");
    size_t at = little(end - 22 + 16, 4);
    for (uint32_t left = little(end - 22 + 10, 2); left-- > 0;) {
        uint32_t length = little(at + 28, 2), start = little(at + 42, 4);
        if (length == strlen(name) && !memcmp(archive + at + 46, name, length)) {
            if (little(at + 10, 2)) die("%s is compressed; modules are not", name);
            size_t begin = start + 30 + little(start + 26, 2) + little(start + 28, 2);
            *size = little(at + 24, 4);
            if (begin + *size > archive_size) die("the module is damaged");
            return (const char *)archive + begin;
        }
        at += 46 + length + little(at + 30, 2) + little(at + 32, 2);
    }
    die("the module has no file %s", name);
    return NULL;
}

static const Json *manifest, *file_names;

static void open_module(const char *path, const char *target) {
    size_t size;
    archive = (unsigned char *)read_whole(path, &archive_size);
    const char *found = archive_file("manifest.json", &size);
    char *copy = take(size + 1);
    memcpy(copy, found, size);
    json_at = copy;
    const Json *all = json_value();
    manifest = get(all, "manifest");
    file_names = get(all, "files");
    if (number(manifest, "format") != FORMAT) die("%s has format %lld, and this program reads %d", path, number(manifest, "format"), FORMAT);
    const Json *capabilities = get(manifest, "capabilities");
    if (strcmp(text(capabilities, "target_name"), target)) die("%s is for %s, not for %s", path, text(capabilities, "target_name"), target);
    device_open(capabilities);
}

/* --- memory ------------------------------------------------------------------------------------------------------------------------ */

typedef struct Array {
    char name[256];
    const char *type;
    int ndim;
    long long shape[8], count; /* count: of numbers, those of elements that are vectors included */
    Buffer *memory, *grad;
    struct Array *next;
} Array;

static Array *arrays;
static Buffer **fields_memory;

static size_t type_size(const char *type) {
    if (!strcmp(type, "u1")) return 1;
    int bits = atoi(type + 1);
    if (bits < 8 || bits > 64 || bits % 8) die("unknown type `%s`", type);
    return (size_t)bits / 8;
}

/* The text of a number as a type. */
static void put_number(void *at, const char *type, const char *value) {
    char *end;
    size_t size = type_size(type);
    if (*type == 'f') {
        double given = strtod(value, &end);
        float narrow = (float)given;
        if (size < 4) die("numbers of type %s cannot be given as text", type);
        memcpy(at, size == 4 ? (void *)&narrow : (void *)&given, size);
    } else {
        long long given = *type == 'u' ? (long long)strtoull(value, &end, 10) : strtoll(value, &end, 10);
        memcpy(at, &given, size);
    }
    if (*end || !*value) die("`%s` is no number of type %s", value, type);
}

static void print_number(const void *at, const char *type) {
    union { float f; double d; long long i; unsigned long long u; } value = {.u = 0};
    size_t size = type_size(type);
    memcpy(&value, at, size);
    if (*type == 'f' && size >= 4) printf(" %.9g", size == 4 ? (double)value.f : value.d);
    else if (*type == 'u') printf(" %llu", value.u);
    else if (*type == 'i') printf(" %lld", (long long)((unsigned long long)value.i << (64 - 8 * size)) >> (64 - 8 * size));
    else die("numbers of type %s cannot be printed", type);
}

/* The memory of fields with this number: zeros, but for some words. */
static Buffer *field_memory(long long index) {
    const Json *all = get(manifest, "memory"), *words = get(all->items[index], "words");
    if (!fields_memory) fields_memory = take((size_t)all->count * sizeof(Buffer *));
    if (fields_memory[index]) return fields_memory[index];
    Buffer *made = fields_memory[index] = device_allocate((size_t)number(all->items[index], "nbytes"));
    if (!words->count) return made;
    char *whole = take(made->size);
    for (int k = 0; k < words->count; k++) {
        int32_t value = (int32_t)words->items[k]->items[1]->number;
        memcpy(whole + words->items[k]->items[0]->number, &value, sizeof value);
    }
    device_upload(made, whole, made->size);
    free(whole);
    return made;
}

static Array *array_named(const char *name) {
    for (Array *array = arrays; array; array = array->next)
        if (!strcmp(array->name, name)) return array;
    return NULL;
}

static void new_array(const char *name, const char *type, int ndim, const long long *shape, long long per_element) {
    Array *array = take(sizeof(Array));
    snprintf(array->name, sizeof array->name, "%s", name);
    array->type = type;
    array->ndim = ndim;
    array->count = per_element;
    for (int k = 0; k < ndim; k++) array->count *= array->shape[k] = shape[k];
    array->memory = device_allocate((size_t)array->count * type_size(type));
    if (*type == 'f') array->grad = device_allocate(array->memory->size);
    array->next = arrays;
    arrays = array;
}

/* The name without the suffix ".grad"; whether it had one. */
static int split_name(const char *name, char *own, size_t size) {
    snprintf(own, size, "%s", name);
    size_t length = strlen(own);
    int grad = length > 5 && !strcmp(own + length - 5, ".grad");
    if (grad) own[length - 5] = 0;
    return grad;
}

/* A field, or with the suffix ".grad" its gradient; NULL if the module has none of that name. */
static const Json *field_named(const char *name) {
    char own[256];
    int grad = split_name(name, own, sizeof own);
    const Json *fields = get(manifest, "fields");
    const Json *primal = NULL;
    for (int i = 0; i < fields->count; i++) {
        const Json *names = get(fields->items[i], "names");
        for (int k = 0; k < names->count; k++)
            if (!strcmp(names->items[k]->text, own)) primal = fields->items[i];
    }
    if (!primal || !grad) return primal;
    for (int i = 0; i < fields->count; i++) {
        const Json *field = fields->items[i];
        if (number(field, "key") == number(primal, "key") && !strcmp(text(field, "role"), "grad")) return field;
    }
    die("field %s has no gradient", name);
    return NULL;
}

/* Copy the elements of a field, one after the other in order of their indices, from (or to) the memory of fields. */
static void field_elements(const Json *field, char *memory, char *elements, int to_memory) {
    const Json *shape = get(field, "shape"), *layout = get(field, "layout"), *terms = get(layout, "terms");
    const Json *components = get(layout, "components");
    size_t size = type_size(type_name(get(field, "dtype")));
    long long count = 1, index[8];
    for (int k = 0; k < shape->count; k++) count *= shape->items[k]->number;
    for (long long n = 0; n < count; n++) {
        long long left = n, address = 0;
        for (int k = shape->count; k-- > 0; left /= shape->items[k]->number) index[k] = left % shape->items[k]->number;
        for (int k = 0; k < terms->count; k++) {
            const Json *term = terms->items[k];
            long long digit = index[number(term, "axis")] / number(term, "div"), mod = number(term, "mod");
            address += (mod ? digit % mod : digit) * number(term, "stride");
        }
        for (int c = 0; c < components->count; c++, elements += size) {
            char *at = memory + address + components->items[c]->number;
            memcpy(to_memory ? at : elements, to_memory ? elements : at, size);
        }
    }
}

/* Where the numbers called `name` lie: the memory, how many bytes of numbers, and the field, if it is one. */
static Buffer *memory_named(const char *name, size_t *size, const char **type, const Json **field) {
    char primal[256];
    int grad = split_name(name, primal, sizeof primal);
    Array *array = array_named(primal);
    *field = NULL;
    if (array) {
        if (grad && !array->grad) die("array %s has no gradient", primal);
        *type = array->type;
        *size = (size_t)array->count * type_size(array->type);
        return grad ? array->grad : array->memory;
    }
    *field = field_named(name);
    if (!*field) die("there is no array and no field called %s", name);
    if (strcmp(text(*field, "kind"), "dense")) die("field %s has cells only where they are active: have a kernel copy it", name);
    const Json *shape = get(*field, "shape");
    *type = type_name(get(*field, "dtype"));
    *size = type_size(*type) * (size_t)get(get(*field, "layout"), "components")->count;
    for (int k = 0; k < shape->count; k++) *size *= (size_t)shape->items[k]->number;
    return field_memory(number(*field, "memory"));
}

static void write_numbers(const char *name, char *data, size_t given) {
    size_t size;
    const char *type;
    const Json *field;
    Buffer *memory = memory_named(name, &size, &type, &field);
    if (size != given) die("%s has %zu bytes, and %zu are given", name, size, given);
    char *whole = data;
    if (field) {
        whole = take(memory->size);
        device_download(memory, whole, memory->size);
        field_elements(field, whole, data, 1);
        size = memory->size;
    }
    device_upload(memory, whole, size);
}

static char *read_numbers(const char *name, size_t *size, const char **type) {
    const Json *field;
    Buffer *memory = memory_named(name, size, type, &field);
    char *data = take(*size), *whole = field ? take(memory->size) : data;
    device_download(memory, whole, field ? memory->size : *size);
    if (field) field_elements(field, whole, data, 0);
    return data;
}

#include "launch.h"
