"""The nouns.

Words for professions are the German masculine (teacher, Lehrer); where English has a word for
a woman, so has the table (queen, waitress).
"""

from demo_corpus import prepositions as prep
from demo_corpus.lexicon import Gender, Kind, Noun, Preposition

_M, _F, _N = Gender.MASCULINE, Gender.FEMININE, Gender.NEUTER

_ADULT = Kind.PERSON | Kind.ADULT
_CHILD = Kind.PERSON | Kind.CHILD
_ROYAL = Kind.PERSON | Kind.ROYAL | Kind.UNOWNED
_KIN = Kind.PERSON | Kind.KIN
_WORKER = Kind.PERSON | Kind.PROFESSION | Kind.UNOWNED
_HELPER = Kind.PERSON | Kind.PROFESSION

MAN = Noun("man", "Mann", _M, "Männer", _ADULT | Kind.UNOWNED, english_plural="men")
WOMAN = Noun("woman", "Frau", _F, "Frauen", _ADULT | Kind.UNOWNED, english_plural="women")
BOY = Noun("boy", "Junge", _M, "Jungen", _CHILD | Kind.UNOWNED, weak=True)
GIRL = Noun("girl", "Mädchen", _N, "Mädchen", _CHILD | Kind.UNOWNED)
DOG = Noun("dog", "Hund", _M, "Hunde", Kind.ANIMAL | Kind.SMALL_ANIMAL)

PEOPLE = (
    MAN,
    WOMAN,
    BOY,
    GIRL,
    Noun("child", "Kind", _N, "Kinder", _CHILD, english_plural="children"),
    Noun("king", "König", _M, "Könige", _ROYAL),
    Noun("queen", "Königin", _F, "Königinnen", _ROYAL),
    Noun("prince", "Prinz", _M, "Prinzen", _ROYAL, weak=True),
    Noun("teacher", "Lehrer", _M, "Lehrer", _HELPER),
    Noun("doctor", "Arzt", _M, "Ärzte", _HELPER),
    Noun("baker", "Bäcker", _M, "Bäcker", _WORKER),
    Noun("farmer", "Bauer", _M, "Bauern", _WORKER, weak=True),
    Noun("student", "Student", _M, "Studenten", _HELPER, weak=True),
    Noun("police officer", "Polizist", _M, "Polizisten", _WORKER, weak=True),
    Noun("tourist", "Tourist", _M, "Touristen", _ADULT | Kind.UNOWNED, weak=True),
    Noun("neighbour", "Nachbar", _M, "Nachbarn", _ADULT, weak=True),
    Noun("guest", "Gast", _M, "Gäste", _ADULT),
    Noun("artist", "Künstler", _M, "Künstler", _WORKER),
    Noun("waiter", "Kellner", _M, "Kellner", _WORKER),
    Noun("waitress", "Kellnerin", _F, "Kellnerinnen", _WORKER),
    Noun("actress", "Schauspielerin", _F, "Schauspielerinnen", _WORKER),
)

KIN = (
    Noun("father", "Vater", _M, None, _KIN),
    Noun("mother", "Mutter", _F, None, _KIN),
    Noun("grandfather", "Großvater", _M, None, _KIN),
    Noun("grandmother", "Großmutter", _F, None, _KIN),
    Noun("brother", "Bruder", _M, "Brüder", _KIN),
    Noun("sister", "Schwester", _F, "Schwestern", _KIN),
    Noun("son", "Sohn", _M, "Söhne", _KIN),
    Noun("daughter", "Tochter", _F, "Töchter", _KIN),
    Noun("uncle", "Onkel", _M, "Onkel", _KIN),
    Noun("aunt", "Tante", _F, "Tanten", _KIN),
)

_PET = Kind.ANIMAL | Kind.SMALL_ANIMAL
_FARM = Kind.ANIMAL
_WILD = Kind.ANIMAL | Kind.UNOWNED

ANIMALS = (
    DOG,
    Noun("cat", "Katze", _F, "Katzen", _PET),
    Noun("bird", "Vogel", _M, "Vögel", _PET),
    Noun("mouse", "Maus", _F, "Mäuse", _PET, english_plural="mice"),
    Noun("horse", "Pferd", _N, "Pferde", _FARM),
    Noun("cow", "Kuh", _F, "Kühe", _FARM),
    Noun("pig", "Schwein", _N, "Schweine", _FARM),
    Noun("goat", "Ziege", _F, "Ziegen", _FARM),
    Noun("bear", "Bär", _M, "Bären", _WILD, weak=True),
    Noun("lion", "Löwe", _M, "Löwen", _WILD, weak=True),
    Noun("monkey", "Affe", _M, "Affen", Kind.ANIMAL, weak=True),
    Noun("elephant", "Elefant", _M, "Elefanten", _WILD, weak=True),
    Noun("wolf", "Wolf", _M, "Wölfe", _WILD, english_plural="wolves"),
)

FOODS = (
    Noun("apple", "Apfel", _M, "Äpfel", Kind.FOOD | Kind.FRUIT),
    Noun("pear", "Birne", _F, "Birnen", Kind.FOOD | Kind.FRUIT),
    Noun("banana", "Banane", _F, "Bananen", Kind.FOOD | Kind.FRUIT),
    Noun("tomato", "Tomate", _F, "Tomaten", Kind.FOOD | Kind.FRUIT, english_plural="tomatoes"),
    Noun("egg", "Ei", _N, "Eier", Kind.FOOD | Kind.MEAL),
    Noun("potato", "Kartoffel", _F, "Kartoffeln", Kind.FOOD | Kind.MEAL, english_plural="potatoes"),
    Noun("cake", "Kuchen", _M, "Kuchen", Kind.FOOD),
    Noun("bread", "Brot", _N, None, Kind.FOOD),
    Noun("cheese", "Käse", _M, None, Kind.FOOD),
    Noun("soup", "Suppe", _F, None, Kind.FOOD | Kind.MEAL),
    Noun("meat", "Fleisch", _N, None, Kind.FOOD | Kind.MEAL),
)

DRINKS = (
    Noun("milk", "Milch", _F, None, Kind.DRINK),
    Noun("coffee", "Kaffee", _M, None, Kind.DRINK),
    Noun("tea", "Tee", _M, None, Kind.DRINK),
    Noun("water", "Wasser", _N, None, Kind.DRINK),
    Noun("beer", "Bier", _N, None, Kind.DRINK),
)

_READ = Kind.TEXT | Kind.FLAT
_WRITTEN = Kind.TEXT | Kind.FLAT | Kind.MANUSCRIPT

TEXTS = (
    Noun("book", "Buch", _N, "Bücher", _WRITTEN),
    Noun("letter", "Brief", _M, "Briefe", _WRITTEN),
    Noun("newspaper", "Zeitung", _F, "Zeitungen", _READ),
    Noun("story", "Geschichte", _F, "Geschichten", Kind.TEXT | Kind.MANUSCRIPT),
    Noun("poem", "Gedicht", _N, "Gedichte", Kind.TEXT | Kind.MANUSCRIPT),
    Noun("novel", "Roman", _M, "Romane", _WRITTEN),
)

_DEVICE = Kind.THING | Kind.UPRIGHT | Kind.DEVICE | Kind.MACHINE
_CONTAINER = Kind.THING | Kind.UPRIGHT | Kind.CONTAINER

THINGS = (
    Noun("key", "Schlüssel", _M, "Schlüssel", Kind.THING | Kind.FLAT),
    Noun("knife", "Messer", _N, "Messer", Kind.THING | Kind.FLAT, english_plural="knives"),
    Noun("spoon", "Löffel", _M, "Löffel", Kind.THING | Kind.FLAT),
    Noun("picture", "Bild", _N, "Bilder", Kind.THING | Kind.FLAT),
    Noun("bottle", "Flasche", _F, "Flaschen", _CONTAINER),
    Noun("suitcase", "Koffer", _M, "Koffer", _CONTAINER),
    Noun("bag", "Tasche", _F, "Taschen", _CONTAINER),
    Noun("cup", "Tasse", _F, "Tassen", Kind.THING | Kind.UPRIGHT),
    Noun("ball", "Ball", _M, "Bälle", Kind.THING | Kind.TOY),
    Noun("doll", "Puppe", _F, "Puppen", Kind.THING | Kind.TOY),
    Noun("umbrella", "Regenschirm", _M, "Regenschirme", Kind.THING),
    Noun("camera", "Kamera", _F, "Kameras", Kind.THING | Kind.FLAT | Kind.MACHINE),
    Noun("clock", "Uhr", _F, "Uhren", Kind.THING | Kind.MACHINE),
    Noun("lamp", "Lampe", _F, "Lampen", _DEVICE),
    Noun("computer", "Computer", _M, "Computer", _DEVICE),
    Noun("radio", "Radio", _N, "Radios", _DEVICE),
)

DOORS = (
    Noun("door", "Tür", _F, "Türen", Kind.DOOR),
    Noun("window", "Fenster", _N, "Fenster", Kind.DOOR),
)

FURNITURE = (
    Noun("table", "Tisch", _M, "Tische", Kind.FURNITURE),
    Noun("chair", "Stuhl", _M, "Stühle", Kind.FURNITURE | Kind.SEAT),
    Noun("bed", "Bett", _N, "Betten", Kind.FURNITURE | Kind.SEAT),
    Noun("sofa", "Sofa", _N, "Sofas", Kind.FURNITURE | Kind.SEAT),
)

CLOTHES = (
    Noun("coat", "Mantel", _M, "Mäntel", Kind.CLOTHING),
    Noun("dress", "Kleid", _N, "Kleider", Kind.CLOTHING),
    Noun("shirt", "Hemd", _N, "Hemden", Kind.CLOTHING),
    Noun("hat", "Hut", _M, "Hüte", Kind.CLOTHING),
    Noun("shoe", "Schuh", _M, "Schuhe", Kind.CLOTHING),
    Noun("jacket", "Jacke", _F, "Jacken", Kind.CLOTHING),
)

VEHICLES = (
    Noun("car", "Auto", _N, "Autos", Kind.VEHICLE),
    Noun("bicycle", "Fahrrad", _N, "Fahrräder", Kind.VEHICLE),
    Noun("boat", "Boot", _N, "Boote", Kind.VEHICLE),
    Noun("bus", "Bus", _M, "Busse", Kind.TRANSPORT | Kind.UNOWNED),
    Noun("train", "Zug", _M, "Züge", Kind.TRANSPORT | Kind.UNOWNED),
    Noun("ship", "Schiff", _N, "Schiffe", Kind.TRANSPORT | Kind.UNOWNED),
)


def _place(
    english: str,
    german: str,
    gender: Gender,
    *,
    kinds: Kind = Kind.PLACE,
    location: Preposition = prep.IN,
    direction: Preposition = prep.INTO,
) -> Noun:
    return Noun(english, german, gender, None, kinds, location=location, direction=direction)


_ROOM = Kind.PLACE | Kind.ROOM
_SIGHT = Kind.PLACE | Kind.SIGHT
_TOWN = _SIGHT | Kind.SHOP | Kind.FAR
_SUMMIT = Kind.PLACE | Kind.SUMMIT
_AWAY = Kind.PLACE | Kind.FAR

# Places stay in the singular, which spares the corpus words that it would hardly use.
PLACES = (
    _place("garden", "Garten", _M),
    _place("kitchen", "Küche", _F, kinds=_ROOM),
    _place("room", "Zimmer", _N, kinds=_ROOM),
    _place("cellar", "Keller", _M, kinds=_ROOM),
    _place("office", "Büro", _N, kinds=_ROOM),
    _place("house", "Haus", _N),
    _place("forest", "Wald", _M, kinds=_AWAY),
    _place("city", "Stadt", _F, kinds=_TOWN),
    _place("village", "Dorf", _N, kinds=_TOWN),
    _place("library", "Bibliothek", _F),
    _place("museum", "Museum", _N, kinds=_SIGHT),
    _place("church", "Kirche", _F, kinds=_SIGHT),
    _place("restaurant", "Restaurant", _N),
    _place("park", "Park", _M),
    _place("hospital", "Krankenhaus", _N, kinds=_AWAY, direction=prep.TO),
    _place("school", "Schule", _F, kinds=_AWAY, direction=prep.TO),
    _place("hotel", "Hotel", _N, kinds=_AWAY, direction=prep.TO),
    _place("station", "Bahnhof", _M, kinds=_AWAY, location=prep.AT_EDGE, direction=prep.TO),
    _place("market", "Markt", _M, kinds=_AWAY | Kind.SHOP, location=prep.AT, direction=prep.TO),
    _place("bridge", "Brücke", _F, location=prep.ON, direction=prep.ONTO),
    _place("mountain", "Berg", _M, kinds=_SUMMIT, location=prep.ON, direction=prep.ONTO),
    _place("roof", "Dach", _N, kinds=_SUMMIT, location=prep.ON, direction=prep.ONTO),
    _place("lake", "See", _M, kinds=_AWAY, location=prep.BY, direction=prep.TO),
    _place("river", "Fluss", _M, kinds=_AWAY, location=prep.BY, direction=prep.TO),
)

SUN = Noun("sun", "Sonne", _F, None, Kind.WEATHER)

NOUNS = (
    *PEOPLE,
    *KIN,
    *ANIMALS,
    *FOODS,
    *DRINKS,
    *TEXTS,
    *THINGS,
    *DOORS,
    *FURNITURE,
    *CLOTHES,
    *VEHICLES,
    *PLACES,
    SUN,
)
