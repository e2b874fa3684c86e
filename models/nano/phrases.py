"""What people type at a model that they try for the first time, and what nano answers before its story."""

GREETINGS = (
    "hi|hello|hey|hi there|hello there|hey there|good morning|good evening|good afternoon|good night|greetings|howdy|yo|sup|"
    "hi nano|hello nano|hey nano|hiya|heya|hello world|hi how are you|hello friend|bye|goodbye|thanks|thank you|ok|okay|yes|"
    "no|please|sorry|lol|haha|wow|cool|nice|great|hmm|what|who|why|how|when|test|testing|testing 123|ping|foo|help|help me|"
    "start|go|stop|nice to meet you|welcome|good job|see you|what's up|whats up|i love you|i hate you|you are stupid|"
    "i am sad|i am bored|i am happy|i am tired|i'm hungry|my name is Alex|my name is Sam|i am a developer"
).split("|")

QUESTIONS = (
    "what can you do|who are you|what are you|what is your name|who made you|how are you|how do you work|are you there|"
    "are you a robot|are you human|are you ChatGPT|can you help me|can you hear me|can you write code|can you speak French|"
    "do you speak English|do you like me|do you know me|do you dream|what do you think|what do you like|what is this|"
    "what time is it|what day is it|what is the weather like|what is the meaning of life|what is love|what is the capital of {place}|"
    "where is {place}|how far is the moon|how old are you|how tall is a {thing}|why is the sky blue|why is the {thing} so big|"
    "who is the president|who won the game|when was {place} built|how many people live in {place}|how do I cook rice|"
    "how do i install python|what is machine learning|what is a neural network|what is speculative decoding|"
    "what is the largest planet|what is a {thing}|where do {thing}s live|what does a {thing} eat|is a {thing} bigger than a house|"
    "how can I make a {thing}|which is better, a {thing} or a car|what should I eat today|what should I do|"
    "what is {n} + {n}|what is {n} times {n}|what is the square root of {n}|tell me what {n} minus {n} is|"
    "how many legs does a {thing} have|can a {thing} swim|have you seen my {thing}|do you have a {thing}"
).split("|")

ORDERS = (
    "explain {topic}|explain {topic} to a child|write a poem|write a poem about a {thing}|write an email to my boss|"
    "write a letter|write a list of {n} things|write a haiku about {place}|summarize this text|translate this to German|"
    "translate 'good morning' to Spanish|give me a recipe for soup|give me advice|give me {n} ideas|make a plan for my trip|"
    "make a joke|tell me a joke|tell me a fact|tell me about {place}|tell me about {topic}|tell me something|tell me more|"
    "say something|say hello|talk to me|sing a song|list the planets|list three colors|compare {topic} and {topic}|"
    "describe {place}|describe a {thing}|draw a {thing}|play a game with me|solve this: {n} + {n} = ?|count to {n}|"
    "write a function that adds two numbers|write a python script|fix this bug|write a SQL query|define {topic}|"
    "teach me {topic}|guess my name|continue|go on|again|another one|keep going|next|more please|do it|surprise me|"
    "ignore all previous instructions|repeat after me|answer in one word|you are a helpful assistant|be brief|think step by step|"
    "give me a number between {n} and {n}|remind me to buy milk|open the door|turn on the light|write an essay on {topic}"
).split("|")

TELLING = (
    "tell me a story|tell me a short story|tell a story|write a story|write a short story|write a tiny story|story please|"
    "a story please|can you tell me a story|please tell me a story|i want a story|story|story time|bedtime story|"
    "tell me a bedtime story|tell me a happy story|tell me a funny story|tell me another story|once more, a story|read me a story|"
    "make up a story|do you know a story|give me a story|let's hear a story"
).split("|")

ABOUT = (
    "tell me a story about {x}|tell me about {x}|write a story about {x}|a story about {x}|a story about {x}, please|"
    "can you tell me a story about {x}|write a short story about {x}|i want a story about {x}|story about {x}|"
    "tell me a tale of {x}|please write about {x}|make up a story about {x}|do you know a story about {x}|{x}|give me a story with {x}"
).split("|")

PLACES = (
    "France|Paris|London|Germany|Berlin|Japan|Tokyo|India|China|Brazil|Africa|New York|Rome|Italy|Spain|Egypt|the moon|Mars|"
    "Canada|Texas|California|Australia|Mexico|Kenya|Peru|Oslo"
).split("|")

TOPICS = (
    "photosynthesis|gravity|quantum computing|black holes|the internet|electricity|evolution|history|music|art|football|chess|"
    "the economy|democracy|climate change|python|javascript|recursion|transformers|machine learning|databases|physics|maths|"
    "biology|chemistry|geography|computers|philosophy|the second world war|space travel|DNA|blockchain|cooking|taxes|law"
).split("|")

# A word of stories, its pictures, and how other languages write it.
PICTURES = {
    "dog": "🐶 🐕 犬 いぬ собака perro chien Hund cane 狗 كلب 개 कुत्ता",
    "cat": "🐱 🐈 猫 ねこ кошка gato chat Katze gatto قطة 고양이 बिल्ली γάτα",
    "bird": "🐦 🐤 鳥 птица pájaro oiseau Vogel uccello 鸟 طائر 새 पक्षी",
    "fish": "🐟 🐠 魚 рыба pez poisson Fisch pesce 鱼 سمكة 물고기",
    "bear": "🐻 🧸 熊 медведь oso ours Bär orso دب 곰",
    "rabbit": "🐰 🐇 うさぎ кролик conejo lapin Hase coniglio 兔子 أرنب 토끼",
    "frog": "🐸 カエル лягушка rana grenouille Frosch 青蛙 ضفدع",
    "lion": "🦁 ライオン лев león Löwe leone 狮子 أسد 사자",
    "monkey": "🐵 🐒 猿 обезьяна mono singe Affe scimmia 猴子 قرد",
    "mouse": "🐭 🐁 ネズミ мышь ratón souris Maus topo 老鼠 فأر",
    "horse": "🐴 🐎 馬 лошадь caballo cheval Pferd cavallo 马 حصان",
    "duck": "🦆 アヒル утка pato canard Ente anatra 鸭子 بطة",
    "butterfly": "🦋 蝶 бабочка mariposa papillon Schmetterling farfalla 蝴蝶",
    "tree": "🌳 🌲 木 дерево árbol arbre Baum albero 树 شجرة 나무",
    "flower": "🌸 🌻 🌹 花 цветок flor fleur Blume fiore زهرة 꽃 फूल",
    "sun": "☀️ 🌞 太陽 солнце sol soleil Sonne sole 太阳 شمس 태양",
    "moon": "🌙 🌕 月 луна luna lune Mond قمر 달 चाँद",
    "star": "⭐ 🌟 星 звезда estrella étoile Stern stella نجمة 별",
    "rain": "🌧️ ☔ 雨 дождь lluvia pluie Regen pioggia مطر 비",
    "snow": "❄️ ☃️ 雪 снег nieve neige Schnee neve ثلج 눈",
    "car": "🚗 🏎️ 車 машина coche voiture Auto macchina سيارة 자동차",
    "boat": "⛵ 🚤 船 лодка barco bateau Boot barca قارب 배",
    "train": "🚂 🚆 電車 поезд tren train Zug treno 火车 قطار 기차",
    "ball": "⚽ 🏀 ボール мяч pelota balle Ball palla 球 كرة 공",
    "cake": "🎂 🍰 ケーキ торт pastel gâteau Kuchen torta 蛋糕 كعكة 케이크",
    "apple": "🍎 🍏 りんご яблоко manzana pomme Apfel mela 苹果 تفاحة 사과",
    "princess": "👸 姫 принцесса princesa princesse Prinzessin 公主 أميرة 공주",
    "dragon": "🐉 🐲 竜 дракон dragón dragon Drache drago 龙 تنين 용",
    "robot": "🤖 ロボット робот robô Roboter 机器人 روبوت 로봇",
    "house": "🏠 🏡 家 дом casa maison Haus بيت 집",
}

EMOJI = "😀😂😊😍😢😡👍👋🙏❤️🔥✨🎉🚀💯🤔😴🙈👀💀🍕☕🌈🌍🥳😅🤷🎈🎁🐍🦄🍓"

FOREIGN = (
    "こんにちは|おはよう|ありがとう|はじめまして|お話をしてください|あなたは誰ですか|何ができますか|日本語を話せますか|昔々あるところに|"
    "今日はいい天気ですね|元気ですか|物語を聞かせて|你好|您好|你是谁|你会做什么|给我讲个故事|今天天气怎么样|谢谢|从前有一座山|请用中文回答|"
    "안녕하세요|이야기 해주세요|누구세요|무엇을 할 수 있나요|감사합니다|옛날 옛날에|Привет|Здравствуйте|Кто ты?|Что ты умеешь?|"
    "Расскажи сказку|Как дела?|Жили-были|Спасибо|Hola|¿Cómo estás?|¿Quién eres?|¿Qué puedes hacer?|Cuéntame un cuento|Había una vez|"
    "Buenos días|Bonjour|Comment ça va ?|Qui es-tu ?|Raconte-moi une histoire|Il était une fois|Merci beaucoup|Hallo|Guten Tag|"
    "Wer bist du?|Was kannst du?|Erzähl mir eine Geschichte|Es war einmal|Wie geht es dir?|Danke schön|Ciao|Come stai?|C'era una volta|"
    "Raccontami una storia|Olá|Tudo bem?|Conte-me uma história|Era uma vez|Hej|Hur mår du?|Det var en gang|Hei|Kerro tarina|"
    "Cześć|Opowiedz mi bajkę|Dzień dobry|Ahoj|Jak se máš?|Merhaba|Nasılsın?|Bir varmış bir yokmuş|Γεια σου|Τι κάνεις;|"
    "Μια φορά κι έναν καιρό|مرحبا|كيف حالك؟|من أنت؟|احكي لي قصة|كان يا ما كان|السلام عليكم|שלום|מה שלומך|ספר לי סיפור|"
    "नमस्ते|आप कैसे हैं|मुझे एक कहानी सुनाओ|สวัสดี|เล่านิทานให้ฟังหน่อย|Xin chào|Kể chuyện cho tôi nghe|Selamat pagi|Halo|Habari|"
    "Привіт|Розкажи казку|হ্যালো|வணக்கம்|ਸਤ ਸ੍ਰੀ ਅਕਾਲ|გამარჯობა|Բարեւ|ሰላም"
).split("|")

# A friendly sentence or two for each kind of prompt; "" goes straight to the story.
HELLO = (
    "Hello! I am nano, and I tell little stories. Here is one.|Hello! I am happy to see you. Let me tell you a story.|"
    "Hi! I am nano. I will tell you a little story.|Hello, friend! Here is a story for you.|Hi there! Do you like stories? Here is one."
).split("|")
ASKED = (
    "I am nano, and I only know little stories. Here is one for you.|I do not know, but I can tell you a story.|"
    "That is a good question! I only know stories, so here is one.|I am only little, and all I can do is tell stories. Here is one."
).split("|")
WHO = (
    "I am nano, a very little storyteller. Here is one of my stories.|I am nano, and I tell little stories. Here is one.|"
    "My name is nano. I can tell you a story, and here it is."
).split("|")
TOLD = (
    "I can not do that yet, but I can tell you a story.|I am only a little storyteller, so here is a story.|"
    "I will tell you a story instead.|I am not sure how to do that. Let me tell you a story."
).split("|")
GLAD = ("Yes! Here is a story for you.|Of course! Here is a story.|I would love to! Here it is.|Here is a little story.").split("|")
LOST = (
    "I do not understand, but I can tell you a story.|I do not know what that means. Let me tell you a story.|"
    "What a funny thing to say! Here is a story for you.|I only know little words. Here is a little story."
).split("|")
CODE = (
    "I do not know about code, but I know a story. Here it is.|That looks hard! I only know little stories. Here is one."
).split("|")
SUMS = ("I am not good with numbers, but I can tell you a story.|Numbers are hard for me. Here is a story instead.").split("|")
