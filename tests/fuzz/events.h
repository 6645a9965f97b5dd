/* The events of json_ and yml_ as text: words to compare, or JSON to read again. */
#ifndef EVENTS_H
#define EVENTS_H

struct fz_events {
    struct str_builder out;
    bool json;                                           /* write JSON, else words with places */
    bool comma;                                          /* a value stands before */
    bool odd;                                            /* holds a number that JSON does not have */
    int depth;
    long n, stop_at;                                     /* events; the one at which to stop, 0: none */
    const char *between;                                 /* documents */
};

static void fz_put_scalar(struct str_builder *b, const struct json_event *ev)
{
    switch (ev->type) {
    case JSON_KEY:
    case JSON_STRING: str_put_quoted(b, ev->text); break;
    case JSON_NUMBER: str_put(b, ev->text); break;
    case JSON_BOOL: str_put_z(b, ev->flag ? "true" : "false"); break;
    default: str_put_z(b, "null"); break;
    }
}

static void fz_record(struct fz_events *e, const struct json_event *ev)
{
    bool end = ev->type == JSON_OBJECT_END || ev->type == JSON_ARRAY_END, begin = ev->type <= JSON_ARRAY;

    if (!e->json) {
        str_putf(&e->out, "%c%u ", "{[}]ksnb0"[ev->type], ev->depth);
        if (!end && !begin) fz_put_scalar(&e->out, ev);
        str_putf(&e->out, " %u:%u\n", ev->line, ev->column);
    } else {
        if (e->comma && !end) str_put_z(&e->out, ev->depth ? "," : e->between);
        if (begin || end) str_put_c(&e->out, "{[}]"[ev->type]);
        else fz_put_scalar(&e->out, ev);
        if (ev->type == JSON_KEY) str_put_c(&e->out, ':');
        e->comma = !begin && ev->type != JSON_KEY;
        e->odd = e->odd || (ev->type == JSON_NUMBER && !json_is_number(ev->text));
    }
}

/* Takes one event; fits json_read and yml_read. */
static int fz_on_event(void *arg, const struct json_event *ev)
{
    struct fz_events *e = arg;

    e->depth -= ev->type == JSON_OBJECT_END || ev->type == JSON_ARRAY_END;
    FZ_CHECK(ev->depth == e->depth && ev->depth < JSON_DEPTH + (ev->type > JSON_ARRAY) && ev->line > 0 && ev->column > 0);
    e->depth += ev->type <= JSON_ARRAY;
    fz_record(e, ev);
    return ++e->n == e->stop_at ? 7 : 0;
}

/* The same without the places: line and column differ when a text is written anew. */
static int fz_on_event_anywhere(void *arg, const struct json_event *ev)
{
    struct json_event e = *ev;

    e.line = e.column = 1;
    return fz_on_event(arg, &e);
}

#endif
