/* The second part of module.h: argument blocks, launches, gradients with adstacks, and the commands of the program. */

#define MAX_ARGUMENTS 64
#define FEWEST_SLOTS 64 /* of a task, and a part of them that is worth a launch */
#define FAULT_BYTES 4224
#define FAULT_LOOPS 32
#define LOCK_BYTES 16384

typedef struct Arguments {
    union { long long i; double f; } scalars[MAX_ARGUMENTS];
    Array *arrays[MAX_ARGUMENTS];
    int count;
} Arguments;

static Buffer *heap, *faults, *locks, *block_memory;
static size_t heap_bytes = (size_t)1 << 26; /* for adstacks */
static uint32_t launches;

static long long evaluate(const Json *size, const Arguments *with) {
    if (size->kind == J_INT) return size->number;
    const char *kind = text(size, "class");
    if (!strcmp(kind, "Arg")) return with->scalars[number(size, "number")].i;
    if (!strcmp(kind, "Extent")) return with->arrays[number(size, "array")]->shape[number(size, "axis")];
    if (!strcmp(kind, "IfLess"))
        return evaluate(get(size, "a"), with) < evaluate(get(size, "b"), with) ? evaluate(get(size, "value"), with) : 0;
    long long a = evaluate(get(size, "a"), with), b = evaluate(get(size, "b"), with);
    if (!strcmp(kind, "Add")) return a + b;
    if (!strcmp(kind, "Sub")) return a - b;
    if (!strcmp(kind, "Mul")) return a * b;
    if (!strcmp(kind, "Min")) return a < b ? a : b;
    if (!strcmp(kind, "Max")) return a > b ? a : b;
    long long rest = b ? a % b : 0, down = rest && (rest < 0) != (b < 0); /* division rounds down */
    if (!strcmp(kind, "FloorDiv")) return b ? a / b - down : 0;
    if (!strcmp(kind, "Mod")) return rest + (down ? b : 0);
    die("the manifest has a size of the kind %s, which this program does not know", kind);
    return 0;
}

/* How many iterations a task has; -1 if only the device knows. */
static long long iterations(const Json *task, const Arguments *with) {
    const Json *begin = get(task, "begin"), *end = get(task, "end");
    if (begin->kind == J_NULL || end->kind == J_NULL) return -1;
    long long count = evaluate(end, with) - evaluate(begin, with);
    return count > 0 ? count : 0;
}

static long long whole_groups(long long count, const Json *task) {
    long long size = number(task, "group_size") > 1 ? number(task, "group_size") : 1;
    return (count + size - 1) / size * size;
}

static uint32_t workgroups(const Json *task, long long count) {
    long long size = number(task, "group_size") > 1 ? number(task, "group_size") : 1;
    long long each = size * number(task, "coarsening"), most = number(task, "max_groups");
    int limited = number(get(manifest, "capabilities"), "loop_limit") != 0 && number(task, "loops");
    if (!most || limited) most = limited ? (1 << 30) / size : 1 << 17;
    if (most > device_max_groups()) most = device_max_groups();
    long long groups = count < 0 ? ((limited ? 1 << 18 : 1 << 16) + size - 1) / size : (count + each - 1) / each;
    return (uint32_t)(groups < most ? groups : most);
}

/* Whether a task has adstacks of its own. */
static int has_adstacks(const Json *compiled, const Json *task) {
    const Json *adstacks = get(compiled, "adstacks");
    for (int k = 0; k < adstacks->count; k++)
        if (!strcmp(text(adstacks->items[k], "task"), text(task, "name"))) return 1;
    return 0;
}

static uint64_t array_address(const Array *array, const char *role) {
    if (!array) die("an array is missing");
    if (!strcmp(role, "primal")) return array->memory->address;
    if (strcmp(role, "grad") || !array->grad) die("array %s has no %s", array->name, role);
    return array->grad->address;
}

static uint64_t slot_value(const Json *slot, const Arguments *with, Buffer *temps, const long long *slots, uint32_t drawn) {
    const char *kind = text(slot, "kind"), *type = type_name(get(slot, "dtype"));
    long long index = number(slot, "index");
    if (!strcmp(kind, "tree")) return field_memory(index)->address;
    if (!strcmp(kind, "array")) return array_address(with->arrays[index], text(slot, "role"));
    if (!strcmp(kind, "temps")) return temps->address;
    if (!strcmp(kind, "adstacks")) return heap->address;
    if (!strcmp(kind, "fault")) return faults->address;
    if (!strcmp(kind, "locks")) return (locks ? locks : (locks = device_allocate(LOCK_BYTES)))->address;
    if (!strcmp(kind, "shape")) return (uint64_t)with->arrays[index]->shape[number(slot, "axis")];
    if (!strcmp(kind, "adstack_heap_words")) return heap_bytes / 4;
    if (!strcmp(kind, "adstack_slots")) return (uint64_t)slots[index];
    if (!strcmp(kind, "seed")) return (uint32_t)(drawn * 0x9E3779B9u);
    if (!strcmp(kind, "launch")) return launches;
    if (strcmp(kind, "scalar")) die("the kernel needs `%s`, which this program does not have", kind);
    uint64_t bits = 0;
    float narrow = (float)with->scalars[index].f;
    if (!strcmp(type, "f32")) memcpy(&bits, &narrow, 4);
    else memcpy(&bits, &with->scalars[index], 8);
    return bits;
}

static void check_spaces(const char *name, const Json *compiled, const Arguments *with) {
    const Json *limits = get(compiled, "space_limits");
    for (int k = 0; k < limits->count; k++) {
        const Json *sizes = get(limits->items[k], "sizes"), *largest = get(limits->items[k], "largest");
        long double product = 1;
        int fits = 1, empty = 0;
        for (int j = 0; j < sizes->count; j++) {
            long long size = evaluate(sizes->items[j], with);
            product *= (long double)size;
            empty |= size == 0;
            fits &= size >= 0 && size <= largest->items[j]->number;
        }
        if (!empty && (!fits || product > (long double)number(limits->items[k], "most")))
            die("%s has an index space that is too large", name);
    }
}

static void check_faults(const char *name, const Json *compiled) {
    uint32_t words[FAULT_BYTES / 4];
    const Json *sites = get(compiled, "faults");
    if (!sites->count) return;
    device_download(faults, words, FAULT_BYTES);
    if (words[0] && words[1] < (uint32_t)sites->count) die("%s: %s", name, text(sites->items[words[1]], "message"));
    for (int k = 0; k < sites->count && k < FAULT_BYTES / 4 - FAULT_LOOPS; k++)
        if (words[FAULT_LOOPS + k]) die("%s: %s", name, text(sites->items[k], "message"));
}

/* What is made of a kernel at its first launch. */
typedef struct Loaded {
    const Json *compiled;
    void **pipelines;
    Buffer *temps;
    uint32_t last; /* number of its last launch */
    struct Loaded *next;
} Loaded;

static Loaded *loaded;

static Loaded *load(const Json *compiled) {
    for (Loaded *found = loaded; found; found = found->next)
        if (found->compiled == compiled) return found;
    Loaded *made = take(sizeof(Loaded));
    const Json *tasks = get(compiled, "tasks"), *binaries = get(compiled, "binaries");
    made->compiled = compiled;
    made->pipelines = take((size_t)tasks->count * sizeof(void *));
    for (int k = 0; k < tasks->count; k++) {
        size_t size;
        const Json *task = tasks->items[k];
        const char *file = file_names->items[number(binaries->items[number(task, "binary")], "bytes")]->text;
        const char *code = archive_file(file, &size);
        made->pipelines[k] = device_load(task, code, size);
    }
    if (number(compiled, "temps_size")) made->temps = device_allocate((size_t)number(compiled, "temps_size"));
    made->next = loaded;
    return loaded = made;
}

/* The argument block as `device_launch` takes it: itself, or the address of a copy in memory if it is too long for the device. */
static const void *passed(const void *block, size_t *size, uint64_t *address) {
    if (*size <= (size_t)number(get(manifest, "capabilities"), "max_push_constants")) return block;
    if (!block_memory || block_memory->size < *size) block_memory = device_allocate(*size);
    device_upload(block_memory, block, *size);
    *address = block_memory->address;
    *size = sizeof *address;
    return address;
}

/* How many thread slots a task may have. */
static long long most_slots(void) { return number(get(manifest, "capabilities"), "loop_limit") ? 1 << 18 : 1 << 16; }

/* `drawn`: the number of the launch whose random numbers this one draws again, 0 for its own. */
static Loaded *launch(const char *name, const Json *compiled, const Arguments *with, uint32_t drawn) {
    const Json *tasks = get(compiled, "tasks"), *args = get(compiled, "args"), *slots = get(args, "slots");
    Loaded *made = load(compiled);
    check_spaces(name, compiled, with);
    if (!faults) faults = device_allocate(FAULT_BYTES);
    if (get(compiled, "adstacks")->count && !heap) heap = device_allocate(heap_bytes);
    long long *counts = take((size_t)tasks->count * sizeof(long long)), *rows = take((size_t)tasks->count * sizeof(long long));
    long long most = most_slots();
    for (int k = 0; k < tasks->count; k++) {
        long long count = counts[k] = iterations(tasks->items[k], with);
        if (has_adstacks(compiled, tasks->items[k]) && (count < 0 || count > most)) counts[k] = most;
        rows[k] = counts[k] < 0 ? 0 : whole_groups(counts[k], tasks->items[k]);
        if (count >= 0 && rows[k] > (count ? count : 1)) rows[k] = count ? count : 1;
    }
    made->last = ++launches;
    size_t size = (size_t)number(args, "size");
    char *block = take(size);
    for (int k = 0; k < slots->count; k++) {
        const Json *slot = slots->items[k];
        uint64_t value = slot_value(slot, with, made->temps, rows, drawn ? drawn : launches);
        memcpy(block + number(slot, "offset"), &value, get(slot, "dtype")->kind == J_NULL ? 8 : type_size(type_name(get(slot, "dtype"))));
    }
    uint64_t address;
    const void *arguments = passed(block, &size, &address);
    for (int k = 0; k < tasks->count; k++) {
        uint32_t groups = workgroups(tasks->items[k], counts[k]);
        if (groups) device_launch(made->pipelines[k], tasks->items[k], arguments, size, groups);
    }
    check_faults(name, compiled);
    free(counts);
    free(rows);
    free(block);
    return made;
}

/* --- commands ---------------------------------------------------------------------------------------------------------------------- */

static char **words; /* of the command line */

static char *next_word(const char *what) {
    if (!*words) die("the command line ends where %s is expected", what);
    return *words++;
}

static void put_scalar(Arguments *into, const char *type) {
    const char *word = next_word("a number");
    char *end;
    if (into->count >= MAX_ARGUMENTS) die("there are more than %d arguments", MAX_ARGUMENTS);
    if (*type == 'f') into->scalars[into->count].f = strtod(word, &end);
    else into->scalars[into->count].i = strtoll(word, &end, 10);
    if (*end || !*word) die("`%s` is no number of type %s", word, type);
    into->count++;
}

static Arguments arguments_of(const Json *kernel) {
    Arguments made = {.count = 0};
    const Json *parameters = get(kernel, "parameters");
    for (int k = 0; k < parameters->count; k++) {
        const Json *p = parameters->items[k], *shape = get(p, "element_shape");
        const char *type = type_name(get(p, "dtype"));
        if (strcmp(text(p, "kind"), "array")) {
            long long entries = 1;
            for (int j = 0; j < shape->count; j++) entries *= shape->items[j]->number;
            while (entries-- > 0) put_scalar(&made, type);
            continue;
        }
        Array *array = array_named(next_word("the name of an array"));
        if (!array || strcmp(array->type, type) || array->ndim != number(p, "ndim"))
            die("argument `%s` is an array of %s with %lld axes", text(p, "name"), type, number(p, "ndim"));
        if (made.count >= MAX_ARGUMENTS) die("there are more than %d arguments", MAX_ARGUMENTS);
        made.arrays[made.count++] = array;
    }
    return made;
}

/* Whether there is memory for enough thread slots beside adstacks with the capacities that kernels have left in `sizes`. */
static int adstacks_fit(const Json *compiled, const Arguments *with, Array *sizes) {
    const Json *adstacks = get(compiled, "adstacks"), *tasks = get(compiled, "tasks");
    size_t most = 0, fixed = 0;
    if (!adstacks->count) return 1;
    int32_t *entries = take(sizes->memory->size);
    device_download(sizes->memory, entries, sizes->memory->size);
    for (int k = -1; k < tasks->count; k++) { /* -1: adstacks of no task, with one thread slot */
        long long count = k < 0 ? 1 : iterations(tasks->items[k], with), nbytes = 0;
        if (count < 0 || count > most_slots()) count = most_slots();
        long long slots = count / FEWEST_SLOTS > FEWEST_SLOTS ? count / FEWEST_SLOTS : count < FEWEST_SLOTS ? count : FEWEST_SLOTS;
        for (int j = 0; j < adstacks->count; j++) {
            const Json *adstack = adstacks->items[j];
            if (strcmp(text(adstack, "task"), k < 0 ? "" : text(tasks->items[k], "name"))) continue;
            size_t entry = type_size(type_name(get(adstack, "dtype"))) * (size_t)number(adstack, "width");
            nbytes += (long long)(entry < 4 ? 4 : entry) * (entries[number(adstack, "capacity")] > 1 ? entries[number(adstack, "capacity")] : 1);
        }
        if (k < 0) fixed = (size_t)nbytes;
        else if ((size_t)(nbytes * slots) > most) most = (size_t)(nbytes * slots);
    }
    free(entries);
    return fixed + most <= heap_bytes;
}

/* One way to run a gradient: kernels that count, then the gradient, unless (`optional`) its adstacks do not fit. Whether it ran. */
static int run_way(const char *name, const Json *compiled, const Json *way, Arguments with, uint32_t drawn, int optional) {
    const Json *counting = get(way, "counting");
    Array sizes = {.name = "sizes", .ndim = 1};
    sizes.shape[0] = get(get(way, "adstacks"), "sizes")->count;
    if (counting->count) {
        sizes.memory = device_allocate((size_t)sizes.shape[0] * 4);
        with.arrays[with.count++] = &sizes;
    }
    for (int k = 0; k < counting->count; k++) launch(name, counting->items[k], &with, drawn);
    if (optional && counting->count && !adstacks_fit(compiled, &with, &sizes)) return 0;
    launch(name, compiled, &with, drawn);
    return 1;
}

static void run(const char *name) {
    const Json *kernel = find(get(manifest, "kernels"), "name", name);
    if (!kernel) die("the module has no kernel %s", name);
    const Json *gradient = get(kernel, "gradient"), *result = get(kernel, "result");
    Arguments with = arguments_of(kernel);
    if (gradient->kind == J_NULL) {
        const Json *compiled = get(kernel, "compiled"), *returns = get(compiled, "returns");
        Loaded *made = launch(name, compiled, &with, 0);
        if (result->kind == J_NULL) return;
        char *temps = take(made->temps->size);
        device_download(made->temps, temps, made->temps->size);
        printf("%s:", name);
        for (int k = 0; k < returns->count; k++) {
            const Json *type_and_offset = returns->items[k];
            print_number(temps + type_and_offset->items[1]->number, type_name(type_and_offset->items[0]));
        }
        printf("\n");
        free(temps);
        return;
    }
    for (int k = 0; k < get(gradient, "returned")->count; k++) put_scalar(&with, type_name(get(result, "dtype")));
    char primal[256];
    split_name(name, primal, sizeof primal);
    uint32_t drawn = load(get(find(get(manifest, "kernels"), "name", primal), "compiled"))->last;
    if (!drawn) drawn = ++launches;
    const Json *nested = get(gradient, "nested"); /* with less and less memory for adstacks */
    int done = run_way(name, get(kernel, "compiled"), gradient, with, drawn, nested->count > 0);
    for (int k = 0; k < nested->count && !done; k++)
        done = run_way(name, get(nested->items[k], "compiled"), nested->items[k], with, drawn, k + 1 < nested->count);
}

static void make_array(void) {
    char *name = next_word("a name"), *type = next_word("a type");
    long long shape[8], per_element = 1;
    int ndim = 0;
    char *cut = strchr(type, 'x');
    for (char *at = cut; at; at = strchr(at + 1, 'x')) per_element *= atoll(at + 1);
    if (cut) *cut = 0;
    while (*words && isdigit((unsigned char)**words) && ndim < 8) shape[ndim++] = atoll(*words++);
    new_array(name, type, ndim, shape, per_element);
}

static void fill(void) {
    size_t size;
    const char *type, *name = next_word("a name");
    char *data = read_numbers(name, &size, &type), one[8], *value = next_word("a number");
    put_number(one, type, value);
    for (size_t at = 0; at < size; at += type_size(type)) memcpy(data + at, one, type_size(type));
    write_numbers(name, data, size);
    free(data);
}

static const char *USAGE =
    "usage: %s module.zip COMMAND...\n"
    "  array NAME TYPE EXTENT...   make an array of zeros and its gradient, NAME.grad; TYPE: f32, i32, f32x3 (vectors) ...\n"
    "  read NAME FILE              set an array or a field to the numbers in a file, as they lie in memory\n"
    "  fill NAME NUMBER            set all its numbers\n"
    "  heap BYTES                  memory for the adstacks of gradients, before the first of them; 64 MiB by default\n"
    "  run KERNEL ARGUMENT...      launch a kernel: names of arrays, numbers; of KERNEL.grad, then the adjoint of the result\n"
    "  write NAME FILE             write the numbers of an array or a field to a file\n"
    "  print NAME                  print them\n";

static void commands(int count, char **given, const char *target) {
    if (count < 3) die(USAGE, given[0]);
    open_module(given[1], target);
    for (words = given + 2; *words;) {
        size_t size;
        const char *type;
        const char *command = next_word("a command");
        if (!strcmp(command, "array")) {
            make_array();
        } else if (!strcmp(command, "heap")) {
            heap_bytes = (size_t)strtoull(next_word("a number of bytes"), NULL, 10) / 4 * 4;
        } else if (!strcmp(command, "fill")) {
            fill();
        } else if (!strcmp(command, "run")) {
            run(next_word("the name of a kernel"));
        } else if (!strcmp(command, "read")) {
            const char *name = next_word("a name");
            char *data = read_whole(next_word("a file"), &size);
            write_numbers(name, data, size);
            free(data);
        } else if (!strcmp(command, "write")) {
            char *data = read_numbers(next_word("a name"), &size, &type);
            const char *path = next_word("a file");
            FILE *file = fopen(path, "wb");
            if (!file || fwrite(data, 1, size, file) != size || fclose(file)) die("cannot write %s", path);
            free(data);
        } else if (!strcmp(command, "print")) {
            const char *name = next_word("a name");
            char *data = read_numbers(name, &size, &type);
            printf("%s:", name);
            for (size_t at = 0; at < size; at += type_size(type)) print_number(data + at, type);
            printf("\n");
            free(data);
        } else {
            die("unknown command %s", command);
        }
    }
}
